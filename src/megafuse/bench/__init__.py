"""Measuring: how long, how sure, how close to the roof."""

from __future__ import annotations

from megafuse.bench.timing import Ratio, Timing, compare, speedup

__all__ = ["Ratio", "Timing", "compare", "speedup"]
