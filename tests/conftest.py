"""What every test may ask for: an op of the registry, a device, a dtype, its own random numbers."""

from __future__ import annotations

import importlib.util
import os
import random
import zlib
from collections.abc import Iterator

# Idle threads of one worker must not spin on the cores of another: 24 s instead of 85 for the
# larger tensors with -n 2 on two cores. OpenMP reads it when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import selection
import torch

import megafuse
from megafuse.ops import Op
from megafuse.runtime import fallback

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


@pytest.fixture(autouse=True, scope="session")
def strict() -> Iterator[None]:
    """A kernel that does not compile fails its test: the reference must not pass in its place."""
    with fallback.strict():
        yield


# ---- seeds

CHOSEN = os.environ.get("MEGAFUSE_TEST_SEED", "")

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("fixed", derandomize=True, database=None)
    settings.load_profile("default" if CHOSEN == "random" else "fixed")


def pytest_report_header() -> str:
    kind = {"": "fixed, from each test's id", "random": "random"}.get(CHOSEN, CHOSEN)
    return f"seeds: {kind}"


@pytest.fixture(autouse=True)
def onednn() -> Iterator[None]:
    """Where a CPU has no instructions for bfloat16, a product of eager's fails inside oneDNN, and
    PyTorch switches oneDNN off for the process, which changes eager's gelu for the tests after."""
    enabled = torch._C._get_mkldnn_enabled()
    yield
    torch._C._set_mkldnn_enabled(enabled)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """From the test's id: other numbers in every test, the same on every run and in any order.

    MEGAFUSE_TEST_SEED=random draws new ones; a failure prints the seed, and
    MEGAFUSE_TEST_SEED=<that> repeats it.
    """
    if CHOSEN == "random":
        chosen = random.SystemRandom().randrange(2**31)
    else:
        chosen = int(CHOSEN) if CHOSEN else seed_of(request.node.nodeid)
    print(f"MEGAFUSE_TEST_SEED={chosen}")
    torch.manual_seed(chosen)
    random.seed(chosen)
    return chosen


def seed_of(test: str) -> int:
    return zlib.crc32(test.encode()) >> 1


# ---- what `make test` and `make test-all` run


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in selection.quick(items):
        item.add_marker(pytest.mark.quick)
    for item in selection.thorough(items):
        item.add_marker(pytest.mark.thorough)
