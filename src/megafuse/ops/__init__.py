"""The fused ops, one module each: importing this package declares them all in the registry."""

from __future__ import annotations

import importlib
import pkgutil

from megafuse.registry import OPS, Op

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["OPS", "Op"]
