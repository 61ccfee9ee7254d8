"""The command `megafuse diagnose`: what it prints, writes and refuses; and mf.diagnose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import megafuse as mf
from megafuse.cli import main
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.runtime import build, cpp

SOURCE = """
import time
import torch
from torch import nn

x = torch.randn(512, 512)

def step():
    return torch.tanh(x * 2 + 1) * x

def needs(x, y):
    return x + y

def fails():
    raise RuntimeError("no weights")

def hangs():
    while True:
        time.sleep(0.01)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
    def forward(self, x):
        return self.layer(x).relu()

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_function_of_no_arguments(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", f"{file}:step", "--no-try"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines() if file not in line)
    assert "a call" in out


def test_a_module_with_inputs_and_its_backward(file: str, tmp_path: Path) -> None:
    written = tmp_path / "a.json"
    asked = ["--input", "8x32", "--mode", "backward", "--no-try", "--json", str(written)]
    assert main(["diagnose", f"{file}:Net", *asked]) == 0
    found = Diagnosis.read(written)
    assert found.record.mode == "forward+backward"
    assert {op.phase for op in found.record.operations} == {"forward", "backward"}
    assert json.loads(written.read_text())["version"] == 1


def test_dtypes(file: str, tmp_path: Path) -> None:
    written = tmp_path / "a.json"
    asked = ["--input", "8x32", "--dtype", "bfloat16", "--no-try", "--json", str(written)]
    assert main(["diagnose", f"{file}:Net", *asked]) == 0
    product = next(op for op in Diagnosis.read(written).record.operations if op.kind == "product")
    assert product.reads[0].dtype == "bfloat16"


def test_a_page(file: str, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    assert main(["diagnose", f"{file}:step", "--no-try", "--html", str(page)]) == 0
    assert "program.py" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{file}:stepp"], "stepp"),
        (["{file}"], "names no function"),
        (["{file}:needs"], "needs x, y"),
        (["{file}:needs", "--input", "8y8"], "no shape"),
        (["{file}:needs", "--input", "8:int3"], "int3 is no dtype"),
        (["{file}:Wide"], "could not be made without arguments"),
        (["{file}:step", "--json", "/nowhere/a.json"], "there is no folder"),
        (["{file}:step", "--seconds", "0"], "more than 0"),
        (["{file}:hangs", "--seconds", "0.5"], "took longer than 0.5 seconds"),
        (["{file}:step", "--mode", "backward"], "nothing that has a gradient"),
    ],
)
def test_what_is_refused(
    file: str, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *(a.format(file=file) for a in arguments)]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_a_callable_that_raises(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", f"{file}:fails"]) == 1
    error = capsys.readouterr().err
    assert "RuntimeError: no weights" in error
    assert 'raise RuntimeError("no weights")' in error
    assert "observe.py" not in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", f"{file}:step", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_in_a_notebook() -> None:
    found = mf.diagnose(lambda x: torch.exp(x), torch.ones(64), attempt=False)
    assert "<b>" in found._repr_html_()
    assert repr(found) == str(found)


def test_importing_megafuse_imports_no_profiler() -> None:
    code = (
        "import sys, megafuse; assert callable(megafuse.diagnose); "
        "print([m for m in ('torch._dynamo', "
        "'megafuse.diagnose.api') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stdout.strip() == "[]"


LOOP = """
extern "C" void forever(volatile long* count) { while (*count >= 0) ++*count; }
"""


@pytest.mark.slow
@pytest.mark.skipif(
    cpp.find() is None or os.name == "nt", reason="needs a C++ compiler and signals"
)
def test_a_kernel_that_never_returns_is_ended(tmp_path: Path) -> None:
    """It holds Python's lock, so that nothing of its own process can end it."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import ctypes\nlibrary = ctypes.PyDLL({str(build.cpu_object(LOOP, 'forever'))!r})\n"
        "def step():\n    library.forever(ctypes.byref(ctypes.c_long(0)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "megafuse", "diagnose", f"{program}:step", "--seconds", "1"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
        check=False,
    )
    assert ran.returncode == -signal.SIGABRT
    assert "has not come back from native code" in ran.stderr
    assert 'program.py", line 4 in step' in ran.stderr
