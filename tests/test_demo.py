"""simple_demo.py as a person runs it: in a terminal of any width, piped, without a compiler."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from megafuse.bench import Timing
from megafuse.learn import demo, explain
from megafuse.learn.ledger import Ledger, count
from megafuse.learn.measure import Calls, Measured
from megafuse.runtime import cpp

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str, command: tuple[str, ...] = ("simple_demo.py",), **changes: str):
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8",
        **changes,
    }
    return subprocess.run(
        [sys.executable, *command, "--quick", "--device", "cpu", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.fixture
def no_compiler(tmp_path):
    return {"PATH": str(tmp_path), "CXX": ""}


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("columns", [80, 40])
def test_piped(columns):
    ran = run(COLUMNS=str(columns))
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= columns
    words = " ".join(ran.stdout.split())
    for part in ("2 operations, 16 bytes per float", "1 operation, 8 bytes per float"):
        assert part in words
    for size in ("1 K", "16 K", "256 K"):
        assert size in words
    assert "Both are right." in words
    assert "speed-up" in words
    assert "Compiled on first use" in words


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_from_the_command_line():
    ran = run(command=("-m", "megafuse", "demo"))
    assert ran.returncode == 0, ran.stderr
    assert "1 operation, 8 bytes per float" in " ".join(ran.stdout.split())


def test_without_a_compiler_both_columns_are_the_same(no_compiler):
    ran = run(**no_compiler)
    assert ran.returncode == 0, ran.stderr
    words = " ".join(ran.stdout.split())
    assert "reference" in words
    assert "Both columns are the same code" in words
    assert "Both are right." in words
    assert "no C++ compiler" in ran.stderr


def test_terminal_without_unicode(no_compiler):
    ran = run(PYTHONIOENCODING="ascii", **no_compiler)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.isascii()


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
@pytest.mark.skipif(sys.platform == "win32", reason="modes are not what guards a folder there")
def test_bad_cache_is_said_without_a_traceback(tmp_path):
    tmp_path.chmod(0o777)
    ran = run(MEGAFUSE_CACHE=str(tmp_path))
    assert ran.returncode == 1
    assert "chmod 700" in " ".join(ran.stdout.split())
    assert "Traceback" not in ran.stdout + ran.stderr


def test_a_wrong_result_stops_the_demo(capsys):
    options = argparse.Namespace(device="cpu", quick=True)
    assert demo.run(options, fused=lambda x: demo.separate(x) + 1e-3) == 1
    assert "WRONG" in capsys.readouterr().out


def test_ledger_counts_what_pytorch_runs():
    x = torch.ones(100)
    counted = count(lambda: demo.separate(x))
    assert counted.operations == ("gelu", "mul")
    assert counted.bytes_moved == 4 * x.nbytes
    assert count(lambda: x.clone()).bytes_moved == 2 * x.nbytes


# ---- the words follow the numbers


def measured(separate: float, fused: float, copy: float, clone: float) -> Measured:
    return Measured(1 << 24, *(Timing.of([t, t]) for t in (separate, fused, copy, clone)))


TWO = Ledger(("gelu", "mul"), 16 << 24)
ONE = Ledger(("gelu_scale",), 8 << 24)


def test_large_where_memory_binds():
    text = explain.large(measured(72e-6, 37e-6, 36e-6, 36e-6), TWO, ONE)
    assert "268 MB" in text
    assert "134 MB" in text
    assert "hides behind the memory" in text
    assert "fresh memory for one result" not in text
    assert "72.0 µs; it takes 72.0 µs." in text


def test_large_where_instructions_bind():
    text = explain.large(measured(31e-3, 18e-3, 2.4e-3, 6e-3), TWO, ONE)
    assert "not memory alone" in text
    assert "3.60 ms is the price of fresh memory" in text
    assert "does not explain all of it" in text


def test_large_where_fusing_lost():
    assert "fusing lost" in explain.large(measured(1e-3, 2e-3, 1e-3, 1e-3), TWO, ONE)


@pytest.mark.parametrize(("one", "said"), [(8e-6, "number of calls"), (1e-6, "the work itself")])
def test_small(one, said):
    text = explain.small(Calls(1024, one, one / 2, 1e-5, 5e-6), TWO, "cpu")
    assert said in text
    assert "launches" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2.00 s"),
        (1.5e-3, "1.50 ms"),
        (4.25e-5, "42.5 µs"),
        (2e-7, "200 ns"),
        (0.0, "0.00 ns"),
    ],
)
def test_seconds(value, text):
    assert explain.seconds(value) == text


@pytest.mark.parametrize(("size", "text"), [(1, "1"), (1 << 10, "1 K"), (1 << 24, "16 M")])
def test_amount(size, text):
    assert explain.amount(size) == text
