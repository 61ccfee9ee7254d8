"""`megafuse bench file.py:function`: a function of the user's beside what fuse makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from megafuse import cli
from megafuse.bench import roof, timing
from megafuse.bench.result import Roofs

SOURCE = """
import torch


def gated(x, bias, scale=2.0):
    return torch.sigmoid(x + bias) * scale
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_flush_buffer", lambda device: torch.ones(1 << 10))
    found = Roofs(1e13, 1e13, {"float32": 1e15}, None, "2026-01-01")
    monkeypatch.setattr(roof, "roofs", lambda device, again=False: found)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


def test_a_function_against_fuse(file: str, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    options = ["--device", "cpu", "--shape", "8x64/64", "--set", "scale=3.0", "--against", "fuse"]
    effort = ["--budget", "0.001", "--visits", "1", "--json", str(out)]
    assert cli.main(["bench", f"{file}:gated", *options, *effort]) == 0
    (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [entry["name"] for entry in row["entries"]] == ["gated", "fuse"]
    assert not any(entry["error"] for entry in row["entries"])
    assert row["entries"][1]["times"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--shape is needed"),
        (["--shape", "8", "--elements", "1Ki"], "--elements is for ops"),
        (["--shape", "8/8/8"], "one for each of x, bias"),
        (["--shape", "8", "--set", "scael=1"], "did you mean scale?"),
        (["swiglu", "--shape", "8"], "not both"),
    ],
)
def test_mistakes_are_said(
    options: list[str], said: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", f"{file}:gated", *options]) == 2
    assert said in capsys.readouterr().err
