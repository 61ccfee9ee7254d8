"""Honest measurements: `mf.bench(function, *args)`, the command `megafuse bench`, and their parts.

The package can be called: `megafuse.bench(…)` is `megafuse.bench.bench(…)`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from megafuse.bench.timing import Ratio, Timing, compare, speedup

__all__ = ["Ratio", "Timing", "bench", "compare", "speedup"]


def bench(function: Any, *args: Any, **options: Any) -> Any:
    """See `megafuse.bench.api.bench`."""
    from megafuse.bench import api

    return api.bench(function, *args, **options)


class _Callable(types.ModuleType):
    def __call__(self, function: Any, *args: Any, **options: Any) -> Any:
        return bench(function, *args, **options)


sys.modules[__name__].__class__ = _Callable
