"""examples/usage_example.py shows every op and every module, and what it shows is right."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import megafuse as mf

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "usage_example.py"


def called() -> set[str]:
    """`gelu_scale` for a call of mf.gelu_scale(…), `nn.FFN` for mf.nn.FFN or its from_torch."""
    found = set()
    for node in ast.walk(ast.parse(EXAMPLE.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            parts = ast.unparse(node.func).split(".")
            if parts[0] == "mf":
                found.add(".".join(parts[1:3] if parts[1] == "nn" else parts[1:]))
    return found


def test_nothing_is_missing():
    assert set(mf.OPS) <= called()
    assert {f"nn.{name}" for name in mf.nn.__all__} <= called()
    functions = {"bench", "set_fp32_matmul", "get_fp32_matmul"}
    assert functions <= called()


@pytest.mark.slow
def test_runs_and_says_what_it_shows():
    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), "--device", "cpu"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for name in (*mf.OPS, *mf.nn.__all__):
        assert name in ran.stdout or name == "convert", name
    assert max(map(len, ran.stdout.splitlines())) <= 100
