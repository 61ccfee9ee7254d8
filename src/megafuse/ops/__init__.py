"""The fused ops, one module each: importing this package declares them all in the registry.

A module that fails is left out with a warning, so that a mistake in one op's declaration takes
none of the others away; `BROKEN` has its name and the error.
"""

from __future__ import annotations

import importlib
import pkgutil

from megafuse.registry import OPS, Op
from megafuse.runtime.progress import logger

BROKEN: dict[str, Exception] = {}

for _module in pkgutil.iter_modules(__path__):
    try:
        importlib.import_module(f"{__name__}.{_module.name}")
    except Exception as _error:
        BROKEN[_module.name] = _error
        logger.warning("megafuse.%s is not there: %s", _module.name, _error)

__all__ = ["BROKEN", "OPS", "Op"]
