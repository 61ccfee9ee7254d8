"""Fresh memory is full of garbage while the contract is checked, so an unwritten element shows."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import pytest

M_PERTURB = -6  # glibc's malloc.h


@pytest.fixture(autouse=True, scope="session")
def garbage_in_new_memory() -> Iterator[None]:
    """malloc fills what it hands out with 0xfe: −1.7e38 in float32, NaN in float16, −2 in int8."""
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_PERTURB, 0x01)
    yield
    libc.mallopt(M_PERTURB, 0)
