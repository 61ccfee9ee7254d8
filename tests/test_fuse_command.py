"""`megafuse fuse`: kernels of a function in a file, without a GPU; mistakes in plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from megafuse import cli
from megafuse.runtime import nvrtc

SOURCE = """
import torch


def gated(x, gate, scale=2.0):
    h = x * torch.sigmoid(gate)
    return h.softmax(-1) * scale


def branching(x):
    return x if x.sum() > 0 else -x
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


def test_prints_the_source(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuse", f"{file}:gated", "--shape", "64x128", "--cpu", "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "struct Gated" in printed
    assert "// h = x * torch.sigmoid(gate)" in printed
    assert "backward" not in printed
    assert "forward: 1 step" in printed


def test_shapes_dtypes_and_numbers(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--shape", "64x128", "--shape", "128", "--dtype", "bfloat16", "--arg", "scale=3.5"]
    assert cli.main(["fuse", f"{file}:gated", *options, "--backward", "--cpu"]) == 0
    printed = capsys.readouterr().out
    assert "gate bf16[s1]" in printed
    assert "scale: number" in printed
    assert "---- backward" in printed


@pytest.mark.skipif(nvrtc.problem() is not None, reason="needs NVRTC")
@pytest.mark.parametrize("shape", ["64x128", "7x33", "1x3"])
def test_counts_registers_without_a_gpu(
    file: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fuse", f"{file}:gated", "--shape", shape, "--arch", "sm_90"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"// Gated2? on sm_90: ", last)  # one long row is a kernel and the library
    assert "nothing spilled" in last
    registers, instructions = (int(n) for n in re.findall(r" (\d+) (?:reg|instr)", last))
    assert 8 <= registers <= 255
    assert instructions > 50


def test_without_nvrtc_it_says_so(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "problem", lambda: "cuda-core is missing: pip install cuda-core")
    assert cli.main(["fuse", f"{file}:gated", "--shape", "8x8", "--arch", "sm_90"]) == 0
    assert "not compiled for sm_90: cuda-core is missing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{file}"], "names no function"),
        (["nowhere.py:f"], "there is no file nowhere.py"),
        (["{file}:gatd", "--shape", "8"], "did you mean gated?"),
        (["{file}:gated"], "--shape is needed for x, gate"),
        (["{file}:gated", "--shape", "8by8"], "expected one like 4096x1024"),
        (["{file}:gated", *["--shape", "8"] * 3], "one for each of x, gate"),
        (["{file}:gated", "--shape", "8", "--dtype", "bfloat61"], "did you mean bfloat16?"),
        (["{file}:gated", "--shape", "8", "--arg", "scael=1"], "did you mean scale?"),
        (["{file}:gated", "--shape", "8", "--arch", "90"], "did you mean sm_90?"),
    ],
)
def test_mistakes_are_said(
    options: list[str], said: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # A Windows path has a colon of its own.
    given = [option.replace("{file}", file) for option in options]
    assert cli.main(["fuse", *given]) == 2
    assert said in capsys.readouterr().err


def test_what_is_not_fused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuse", f"{file}:branching", "--shape", "8"]) == 1
    assert "torch.where" in capsys.readouterr().err
