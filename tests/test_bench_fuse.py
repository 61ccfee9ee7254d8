"""`megafuse bench --suite fuse`: its rows, what it says at the end, and what it refuses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from megafuse import cli
from megafuse.bench import fuse_suite, roof, timing
from megafuse.bench.model_cases import CASES, KI, MI, SIZES
from megafuse.bench.result import Roofs, read
from megafuse.compiler import fuse
from megafuse.runtime import cpp


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_flush_buffer", lambda device: torch.ones(1 << 10))
    found = Roofs(1e13, 1e13, {"float32": 1e15}, None, "2026-01-01")
    monkeypatch.setattr(roof, "roofs", lambda device, again=False: found)
    smaller = SIZES[KI].another_batch()
    monkeypatch.setitem(SIZES, MI, smaller)


def options(**given: object) -> argparse.Namespace:
    names = ("dtype", "shape", "elements", "features", "set", "mode", "counters", "against")
    return argparse.Namespace(**{**dict.fromkeys(names), "suite": "fuse", "ops": [], **given})


def test_the_rows() -> None:
    rows = fuse_suite.rows(options(), "cpu")
    forward = [r.name for r in rows if r.mode == "forward" and r.elements != KI]
    assert forward == [str(case) for case in CASES]
    backward = [r.name for r in rows if r.mode == "forward+backward"]
    assert backward == [str(case) for case in CASES if case.grads]
    small = [r for r in rows if r.elements == KI]
    assert [r.name for r in small] == list(fuse_suite.SMALL)
    assert all("built-in" in r.yardsticks for r in small)
    for row in rows:
        assert [c.name for c in row.contenders] == ["fuse", "eager", "compile"]


def test_what_is_least_to_move() -> None:
    (row, *_) = fuse_suite.rows(options(ops=["adamw"]), "cpu")
    assert row.work is not None
    assert row.work.bytes_moved == 7 * 4 * row.elements  # p, m, v in and out, and the gradient


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_a_part_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fuse.json"
    chosen = ["guided", "smoothed_cross_entropy", "--against", "eager", "--device", "cpu"]
    effort = ["--budget", "0.001", "--visits", "1", "--json", str(out)]
    assert cli.main(["bench", "--suite", "fuse", *chosen, *effort]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "eager takes" in printed
    assert "host cost at 1 Ki elements" in printed
    assert "fuse, first call: median" in printed
    assert "by the library: aten.gather" in printed
    result = read(out)
    assert (result.suite, result.stopped) == ("fuse", False)
    assert [(r.op, r.mode) for r in result.rows] == [
        ("smoothed_cross_entropy", "forward"),
        ("guided", "forward"),
        ("smoothed_cross_entropy", "forward+backward"),
        ("guided", "forward+backward"),
        ("guided", "forward"),
    ]
    for row in result.rows[:4]:
        fused = row.entries[0]
        assert (fused.name, fused.error, fused.compiled_again) == ("fuse", None, False)
        assert fused.first_call
        assert fused.accuracy is not None
    assert {"eager", "copy"} == set(result.rows[0].speedups)
    assert json.loads(out.read_text(encoding="utf-8"))["rows"][0]["entries"][0]["first_call"]


@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_it_ends_when_its_seconds_are_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fuse.json"
    command = ["bench", "--suite", "fuse", "guided", "ema", "--against", "eager"]
    limits = ["--device", "cpu", "--seconds", "1e-6", "--budget", "0.001", "--json", str(out)]
    assert cli.main([*command, *limits]) == 0
    assert "stopped before the end" in capsys.readouterr().out
    result = read(out)
    assert result.stopped
    assert not result.rows
    assert "--seconds 1e-06" in result.command


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gelu_tnah"], "did you mean gelu_tanh?"),
        (["swiglu"], "There are gelu_tanh, squared_relu"),
        (["guided", "--dtype", "float16"], "leave out --dtype"),
        (["--against", "nobody"], "there is no contender 'nobody'"),
    ],
)
def test_mistakes_are_said(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--suite", "fuse", "--device", "cpu", *given]) == 2
    assert said in capsys.readouterr().err


def test_a_function_that_is_not_fused_is_named() -> None:
    (said,) = fuse_suite._remarks(fuse(lambda n: torch.arange(3) * n), [2.0])
    assert said.startswith("fuse: not fused, it ran as it is: its tensors must be on one device")
