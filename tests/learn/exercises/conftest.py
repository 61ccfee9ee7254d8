"""Exercises are checked without waiting: compiled hastily, timed for a moment."""

from __future__ import annotations

import pytest

from megafuse.learn.exercises import roof
from megafuse.runtime import cpp


@pytest.fixture(autouse=True, scope="module")
def compiled_hastily():
    """Each kernel runs once, on a few floats."""
    cpp.compile_hastily(True)
    yield
    cpp.compile_hastily(False)


@pytest.fixture(autouse=True)
def short_timings(monkeypatch):
    """Times are shown, not judged: a test need not wait for good ones."""
    monkeypatch.setattr(roof, "_BUDGET", 0.01)
