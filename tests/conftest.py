"""What every test may ask for: an op of the registry, a device, a dtype, fresh random numbers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

# Idle threads of one worker must not spin on the cores of another: 24 s instead of 85 for the
# larger tensors with -n 2 on two cores. OpenMP reads it when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

import megafuse
from megafuse.ops import Op

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append(pytest.param("cuda", marks=pytest.mark.cuda))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=megafuse.OPS.values(), ids=list(megafuse.OPS))
def op(request: pytest.FixtureRequest) -> Op:
    return request.param


@pytest.fixture(params=FLOATS, ids=dtype_name)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(autouse=True)
def onednn() -> Iterator[None]:
    """Where a CPU has no instructions for bfloat16, a product of eager's fails inside oneDNN, and
    PyTorch switches oneDNN off for the process, which changes eager's gelu for the tests after."""
    enabled = torch._C._get_mkldnn_enabled()
    yield
    torch._C._set_mkldnn_enabled(enabled)


@pytest.fixture(autouse=True)
def seed() -> int:
    """New numbers on every run; a failure prints the seed, and MEGAFUSE_TEST_SEED=… repeats it."""
    chosen = int(os.environ.get("MEGAFUSE_TEST_SEED") or random.SystemRandom().randrange(2**31))
    print(f"MEGAFUSE_TEST_SEED={chosen}")
    torch.manual_seed(chosen)
    random.seed(chosen)
    return chosen
