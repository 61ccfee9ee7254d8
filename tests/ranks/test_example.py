"""examples/train_distributed.py, started by torchrun: it fails itself where losses differ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from selection import often

from ranks.launch import needs_gloo

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = str(ROOT / "examples" / "train_distributed.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def ran(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_gloo
@pytest.mark.slow
@pytest.mark.parametrize("engine", often(["tp", "ddp", "fsdp"], ["tp"]))
def test_two_ranks_have_the_losses_of_one(engine: str) -> None:
    said = ran(*TORCHRUN, SCRIPT, "--engine", engine, "--steps", "3")
    assert f"{engine} on 2 ranks (cpu)" in said
    assert said.count("one rank ") == 3 + 1
    assert said.rstrip().endswith("same losses")


@needs_gloo
@pytest.mark.slow
def test_it_runs_without_torchrun_too() -> None:
    assert "same losses" in ran(SCRIPT, "--engine", "fsdp", "--steps", "1")
