"""`megafuse new`: from a PyTorch function to an op that is tested, measured and called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megafuse import cli
from megafuse.runtime import cpp

ROOT = Path(__file__).resolve().parent.parent
MODEL = '''
import math

import torch
import torch.nn.functional as F

LIMIT = 3.0


def gated(x: torch.Tensor, y, scale: float = 2.0, to: float = 0.5):
    """tanh(x / scale)·scale, gated by y"""
    # The gate opens at `to`.
    h = torch.tanh(x / scale) * scale
    gate = torch.sigmoid(math.pi * (y - to))
    return torch.where(h > LIMIT, h, h * gate) + F.softplus(y) ** 2


def passed(x, y):
    return x * 3 + y


def both(x, y):
    return x + y


def turned(x, y):
    return x.t() * y


def mean_of(x):
    return x / x.sum(-1, keepdim=True)


def product(x, w):
    return torch.relu(x @ w)


def helped(x):
    return passed(x, x) * 2


def chosen(x, how: str = "a"):
    return x * 2


def pair(x):
    return x * 2, x + 1


def positive(x):
    return x > 0


def branching(x, limit: float):
    return x * 2 if limit > 1 else x


short = lambda x: x * 2
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like one, with a file of functions beside it."""
    for folder in ("ops", "kernels"):
        (tmp_path / "src/megafuse" / folder).mkdir(parents=True)
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    return tmp_path


def files(checkout: Path) -> set[str]:
    found = (path for path in checkout.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(checkout)) for path in found} - {"model.py"}


def new(checkout: Path, name: str, function: str) -> int:
    spec = f"{checkout / 'model.py'}:{function}"
    return cli.main(["new", name, "--from", spec, "--into", str(checkout)])


def test_what_is_written(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new(checkout, "soft_gate", "gated") == 0
    assert files(checkout) == {
        "src/megafuse/kernels/soft_gate.h",
        "src/megafuse/ops/soft_gate.py",
        "tests/ops/test_soft_gate.py",
    }
    printed = capsys.readouterr().out
    assert "written: src/megafuse/ops/soft_gate.py" in printed
    assert max(map(len, printed.splitlines())) <= 80
    header = (checkout / "src/megafuse/kernels/soft_gate.h").read_text(encoding="utf-8")
    assert "struct SoftGate : Scalars<2> {" in header
    assert (
        "// h = torch.tanh(x / scale) * scale\n    const F h = tanh(x / scale) * scale;" in header
    )
    assert "Pack<F, 2> operator()(F grad, F x, F y) const {" in header
    assert "float" not in header
    op = (checkout / "src/megafuse/ops/soft_gate.py").read_text(encoding="utf-8")
    assert "def soft_gate(x: Tensor, y: Tensor, scale: float = 2.0, to: float = 0.5)" in op
    assert "    # The gate opens at `to`.\n    h = " in op
    assert "\nLIMIT = 3.0\n" in op


def test_a_gradient_that_is_passed_through(checkout: Path) -> None:
    """And results in the function's order."""
    assert new(checkout, "triple_add", "passed") == 0
    header = (checkout / "src/megafuse/kernels/triple_add.h").read_text(encoding="utf-8")
    assert "return {grad * F(3.0), grad};" in header
    assert new(checkout, "add_both", "both") == 0
    header = (checkout / "src/megafuse/kernels/add_both.h").read_text(encoding="utf-8")
    assert "Pack<F, 2> operator()(F grad, F, F) const {\n    return {grad, grad};" in header


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        ("SoftClip", "gated", "expected one like soft_clip"),
        ("class", "gated", "expected one like soft_clip"),
        ("../up", "gated", "expected one like soft_clip"),
        ("gelu_scale", "gated", "megafuse.gelu_scale is something already"),
        ("bench", "gated", "megafuse.bench is something already"),
        ("soft_gate", "gone", "has no attribute 'gone'"),
        ("soft_gate", "product", "takes 2 steps (aten.mm.default"),
        ("soft_gate", "mean_of", "goes row by row"),
        ("soft_gate", "turned", "depends on where an element is"),
        ("soft_gate", "pair", "returns more than one tensor"),
        ("soft_gate", "positive", "its result is no float"),
        ("soft_gate", "helped", "uses passed, which is neither an argument"),
        ("soft_gate", "chosen", "argument 'how' is str"),
        ("soft_gate", "branching", "cannot be fused"),
        ("soft_gate", "short", "no function that `def` made"),
    ],
)
def test_refused_and_nothing_is_written(
    name: str,
    function: str,
    said: str,
    checkout: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert new(checkout, name, function) == 2
    assert said in capsys.readouterr().err
    assert not files(checkout)


def test_what_is_there_stays(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = checkout / "src/megafuse/kernels/soft_gate.h"
    theirs.write_text("// mine\n", encoding="utf-8")
    assert new(checkout, "soft_gate", "gated") == 2
    assert "soft_gate.h already: choose another name" in capsys.readouterr().err
    assert files(checkout) == {"src/megafuse/kernels/soft_gate.h"}
    assert theirs.read_text(encoding="utf-8") == "// mine\n"


def test_half_of_it_is_taken_back(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "tests").write_text("no folder\n", encoding="utf-8")
    assert new(checkout, "soft_gate", "gated") == 2
    assert "cannot write" in capsys.readouterr().err
    assert files(checkout) == {"tests"}


def test_it_wants_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "soft_gate", "--from", "a.py:f", "--into", str(tmp_path)]) == 2
    assert "is no checkout of megafuse" in capsys.readouterr().err


def test_help_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["new", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_the_walk(tmp_path: Path) -> None:
    """The new op's test passes, its benchmark row runs, it is called; its files are formatted."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "80"}
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    run("-m", "megafuse", "new", "soft_gate", "--from", "model.py:gated")
    quietly = ("-q", "-p", "no:cacheprovider", "tests/ops/test_soft_gate.py")
    assert "19 passed" in run("-m", "pytest", *quietly)
    assert "tanh(x / scale)·scale, gated by y" in run("-m", "megafuse", "ops")
    small = ("--elements", "1Ki", "--budget", "0.001", "--visits", "1", "--against", "eager")
    assert "fused" in run("-m", "megafuse", "bench", "soft_gate", "--device", "cpu", *small)
    called = "import torch, megafuse as mf; print(mf.soft_gate(torch.ones(2), torch.ones(2), 1.5))"
    assert "tensor" in run("-c", called)
    paths = ("src/megafuse/ops/soft_gate.py", "tests/ops/test_soft_gate.py")
    for command in (("check",), ("format", "--check")):
        run("-m", "ruff", *command, "--no-cache", *paths)
