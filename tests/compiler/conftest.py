"""Fixtures of the compiler's tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from megafuse.runtime import cpp, loader


@pytest.fixture
def quiet() -> None:
    """Kernels run, and torch's warnings about what random programs do are not told."""
    if loader.load() is None:
        pytest.skip("no C++ compiler")
    warnings.simplefilter("ignore")


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Kernels run, and what they do not write is NaN."""
    host = loader.load()
    if host is None:
        pytest.skip("no C++ compiler")
    host.poison_outputs(True)
    yield
    host.poison_outputs(False)


@pytest.fixture
def anew() -> Iterator[None]:
    """Nothing that torch.compile made before."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Kernels compile in a third of the time, and run slower; their arithmetic is the same."""
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)


AS_FOR_USERS = ("test_models", "test_machine_code", "test_fuse")


@pytest.fixture(autouse=True)
def mostly_hasty(request: pytest.FixtureRequest) -> None:
    """Here are many kernels, each for a call or two; tests/codegen/, the contract suite and these
    modules compile with the flags that users get."""
    if request.module.__name__.rpartition(".")[2] not in AS_FOR_USERS:
        request.getfixturevalue("hasty")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Where there is a GPU, tests run a second time with their tensors there: all but those that
    say their device themselves, and those about the CPU or no device at all."""
    about = metafunc.module.__name__.rpartition(".")[2]
    about_others = ("test_cuda_graphs", "test_fuzz", "test_fuzz_networks")
    if about in (*about_others, "test_machine_code", "test_source"):
        return
    if torch.cuda.is_available() and "device" not in metafunc.fixturenames:
        on_gpu = pytest.param("cuda", marks=pytest.mark.cuda)
        metafunc.parametrize("placed", ["cpu", on_gpu], indirect=True)


@pytest.fixture(autouse=True)
def placed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tensors that are made without a device are made on this one. A default device would be a
    mode, and functions that are called under a mode are a case of their own."""
    if getattr(request, "param", "cpu") == "cpu":
        yield
        return
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    yield
    torch.set_default_tensor_type(torch.FloatTensor)
