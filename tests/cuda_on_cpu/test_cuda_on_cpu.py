"""CUDA kernels run on the CPU: the source that NVRTC gets, planned and packed by the host runtime.

The emulator stands in for the driver and the GPU (gpu.py). It finds accesses outside of tensors,
misaligned ones, shared memory that nobody wrote, barriers that not all threads reach, and results
that depend on the order in which threads run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_on_cpu.cases import GROUPS, QUICK
from cuda_on_cpu.decode_mistakes import PLANTED
from megafuse.runtime import cpp

HERE = Path(__file__).resolve().parent

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None, reason="torch has a CUDA device of its own"),
    pytest.mark.skipif(sys.platform != "linux", reason="the emulator is for Linux"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]


def run(*arguments: str, program: str = "run.py") -> None:
    """In a process of its own: torch has a fake device there."""
    made = subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.mark.slow
def test_planted_mistakes_are_found() -> None:
    run(program="planted.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", [*GROUPS, "hand_written", "plans", "fuzz:0:20", "decode", "optimizers"]
)
def test_group(group: str) -> None:
    run(group)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED)
def test_mistakes_of_the_decode_kernel_are_found(mistake: str) -> None:
    run(f"decode:{mistake}")


@pytest.mark.slow
@pytest.mark.parametrize("sm", ["75", "90"])
def test_other_architectures(sm: str) -> None:
    """Narrower conversions before sm_80. Rows for several blocks, which sm_90 has, are not among
    these: the emulator has no clusters."""
    few = (f"{group}:{name}" for group, names in QUICK.items() for name in names)
    run(*few, "--sm", sm)
