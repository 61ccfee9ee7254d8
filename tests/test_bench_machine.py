"""megafuse.bench.machine: what a number was measured on, and in what state it was."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megafuse.bench import machine
from megafuse.bench.machine import Condition, condition, throttled
from megafuse.runtime import provenance
from megafuse.runtime.provenance import commit

posix = pytest.mark.skipif(sys.platform == "win32", reason="a script of the POSIX shell")


# ---- the machine


def test_about_the_cpu():
    told = machine.about("cpu")
    assert set(told) == {
        *("device", "cpu", "architecture", "system", "threads", "cores", "cache_bytes"),
    }
    assert told["device"] == "cpu"
    assert told["cpu"]
    assert told["architecture"] == platform.machine()
    assert told["threads"] == torch.get_num_threads()
    assert told["cache_bytes"] > 0
    assert json.loads(json.dumps(told)) == told


@pytest.mark.cuda
def test_about_the_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    told = machine.about("cuda")
    assert told["gpu"] == torch.cuda.get_device_name()
    assert told["l2_bytes"] > 0
    assert told["gpu_memory_bytes"] > told["l2_bytes"]
    assert {"driver", "cuda"} <= set(told)
    state = condition("cuda")
    assert state.clock_mhz is None or state.clock_mhz > 0


def test_versions():
    told = provenance.versions()
    assert set(told) == {"megafuse", "torch", "triton", "python", "compiler"}
    assert told["torch"] == torch.__version__
    assert told["python"] == platform.python_version()
    assert told["megafuse"]


def test_versions_without_a_compiler(monkeypatch):
    monkeypatch.setattr(provenance.cpp, "find", lambda: None)
    assert provenance.versions()["compiler"] is None


def test_load(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 1.0, 0.5), raising=False)
    assert machine.load() == 1.5
    monkeypatch.delattr(os, "getloadavg")
    assert machine.load() is None


# ---- the commit


def test_commit_by_name(monkeypatch):
    monkeypatch.setenv("MEGAFUSE_COMMIT", "abc123")
    assert commit() == ("abc123", False)
    monkeypatch.setenv("MEGAFUSE_COMMIT", "abc123+")
    assert commit() == ("abc123", True)


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A repository with a package like this one; provenance.py believes to be in it."""
    for name in [n for n in os.environ if n.startswith("GIT_")] + ["MEGAFUSE_COMMIT"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    package = tmp_path / "repo" / "src" / "megafuse" / "runtime"
    package.mkdir(parents=True)
    (package / "provenance.py").write_text("# this one\n")
    git(tmp_path / "repo", "init", "-q")
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    return tmp_path / "repo"


def git(repo: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    ran = subprocess.run(
        ["git", "-C", str(repo), *who, *words], check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


def test_commit_of_a_checkout(checkout):
    assert commit() == ("unknown", False), "nothing is committed yet"
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "one")
    head = git(checkout, "rev-parse", "HEAD")
    assert commit() == (head, False)
    (checkout / "notes.txt").write_text("not of the package")
    assert commit() == (head, False)
    (checkout / "src" / "megafuse" / "cli.py").write_text("# new")
    assert commit() == (head, True)


def test_an_installation_inside_another_repository(checkout):
    """Such as project/.venv: the project's commit says nothing of megafuse."""
    (checkout / ".gitignore").write_text("src/\n")
    git(checkout, "add", ".gitignore")
    git(checkout, "commit", "-qm", "the user's")
    assert commit() == ("unknown", False)


def test_commit_without_git(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == ("unknown", False)


# ---- the state


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        ("0x0000000000000000", ()),
        ("0x0000000000000001", ()),  # idle
        ("0x0000000000000002", ()),  # the user's own setting
        ("0x0000000000000004", ("power cap",)),
        ("0x0000000000000008", ("hardware slowdown",)),
        ("0x0000000000000060", ("too hot (software)", "too hot (hardware)")),
        ("0x0000000000000084", ("power cap", "power brake")),
        ("[N/A]", ()),
        ("", ()),
    ],
)
def test_reasons_by_their_bits(bits, reasons):
    assert machine._held_down(bits) == reasons


def test_throttled():
    assert throttled([]) == []
    assert throttled([Condition(), Condition()]) == []
    assert throttled([Condition(1980.0, 40.0), Condition(1900.0, 60.0)]) == []
    hot = Condition(1980.0, 88.0, ("too hot (hardware)", "power cap"))
    assert throttled([hot, Condition(1980.0)]) == [
        "the driver held the clock down: power cap, too hot (hardware)"
    ]
    assert throttled([Condition(1980.0), Condition(1500.0)]) == [
        "the clock fell from 1980 to 1500 MHz"
    ]
    assert throttled([Condition(1500.0), Condition(1980.0)]) == [], "it only rose"
    assert len(throttled([hot, Condition(1000.0)])) == 2


SMI = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$*" in
  *clocks_event_reasons*) {event} ;;
  *clocks_throttle_reasons*) {throttle} ;;
  *driver_version*) echo "580.65.06" ;;
esac
"""
OLD = 'echo "Field is not a valid field to query."; exit 2'


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts an nvidia-smi that answers like this on PATH; returns what it was asked."""

    def put(event: str, throttle: str = OLD) -> Path:
        script = tmp_path / "nvidia-smi"
        script.write_text(SMI.format(event=event, throttle=throttle))
        script.chmod(0o755)
        return tmp_path / "asked"

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    cards = {3: SimpleNamespace(uuid="a1b2-c3")}
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    machine._driver.cache_clear()
    yield put
    machine._driver.cache_clear()


@posix
def test_the_state_of_the_gpu(smi):
    asked = smi('echo "1980, 44, 0x0000000000000004"')
    assert condition("cuda") == Condition(1980.0, 44.0, ("power cap",))
    assert "--format=csv,noheader,nounits" in asked.read_text()
    assert "--id=GPU-a1b2-c3 " in asked.read_text(), "another card's, with CUDA_VISIBLE_DEVICES"
    assert machine._driver() == "580.65.06"


@posix
def test_the_state_of_the_gpu_from_an_older_driver(smi):
    smi(OLD, 'echo "1410, 60, 0x0000000000000040"')
    assert condition("cuda") == Condition(1410.0, 60.0, ("too hot (hardware)",))


@posix
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('echo "[N/A], 44, [N/A]"', Condition(None, 44.0)),
        ('echo "No devices were found"', Condition()),
        ("true", Condition()),
        ("exit 9", Condition()),
    ],
)
def test_what_the_driver_does_not_tell(smi, answer, expected):
    smi(answer, answer)
    assert condition("cuda") == expected


def test_no_driver(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert condition("cuda") == Condition()


def test_the_state_of_the_cpu(monkeypatch):
    told = {"scaling_cur_freq": 2_400_000.0, "temp": 51_000.0}
    monkeypatch.setattr(machine, "_file_number", lambda path: told[path.name])
    assert condition("cpu") == Condition(2400.0, 51.0)
    monkeypatch.setattr(machine, "_file_number", lambda path: None)
    assert condition("cpu") == Condition()


def test_files_that_hold_no_number(tmp_path):
    (tmp_path / "a").write_text("42\n")
    (tmp_path / "b").write_text("<unknown>\n")
    numbers = [machine._file_number(tmp_path / name) for name in "abc"]
    assert numbers == [42.0, None, None]


# ---- float32


@pytest.fixture
def told(monkeypatch):
    """Makes torch say how it multiplies float32 matrices."""

    def tell(precision: str) -> None:
        backend = type("matmul", (), {"fp32_precision": precision})
        for module in (torch.backends.cuda, torch.backends.mkldnn):
            monkeypatch.setattr(module, "matmul", backend)

    return tell


@pytest.mark.parametrize("precision", ["none", "ieee"])
def test_float32_is_strict_by_default(told, precision):
    told(precision)
    assert machine.float32_products("cpu") == {"float32_torch": "ieee", "float32_megafuse": "ieee"}
    on_gpu = machine.float32_products("cuda")
    assert on_gpu == {"float32_torch": "ieee", "float32_megafuse": "split"}
    assert machine.not_float32(on_gpu) == []


def test_tf32_is_told_and_warned_of(told):
    told("tf32")
    products = machine.float32_products("cuda")
    assert products == {"float32_torch": "tf32", "float32_megafuse": "tf32"}
    (warning,) = machine.not_float32(products)
    assert "as tf32" in warning


def test_megafuse_has_a_switch_of_its_own(told, monkeypatch):
    told("none")
    monkeypatch.setattr(machine.fp32_matmul, "get_fp32_matmul", lambda: "ieee")
    assert machine.float32_products("cuda")["float32_megafuse"] == "ieee"


def test_this_process_is_strict():
    assert machine.float32_products("cpu")["float32_torch"] == "ieee"
    assert machine.not_float32({}) == []
