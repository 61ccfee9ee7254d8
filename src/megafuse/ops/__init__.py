"""The fused ops: every module here that declares one is an op, found by its file."""

from __future__ import annotations

import importlib
import pkgutil

from megafuse.ops.registry import OPS, Op

_FRAME = {
    "arguments",
    "catalog",
    "cost",
    "registry",
    "sample",
    "second_derivative",
}  # not ops themselves

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _FRAME:
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["OPS", "Op"]
