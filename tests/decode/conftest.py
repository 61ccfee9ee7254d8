"""Kernels for tests are compiled in a third of the time: each runs on tiny models."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
hf = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")

from megafuse.runtime import cpp  # noqa: E402


@pytest.fixture(autouse=True, scope="package")
def hastily_compiled() -> Iterator[None]:
    hf.logging.set_verbosity_error()
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)
