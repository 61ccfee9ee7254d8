"""Fixtures of the compiler's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megafuse.runtime import cpp, loader


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
def hasty() -> Iterator[None]:
    """Kernels compile in less time, and run slower: where there are many, each for one call."""
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)
