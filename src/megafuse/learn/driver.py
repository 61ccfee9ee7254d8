"""CUDA's driver, for learners' kernels: those of the ladder, and those of exercises."""

from __future__ import annotations

import importlib
from typing import Any


def call(name: str, *arguments: Any) -> Any:
    """One function of the driver; its result, or a RuntimeError that names it and its status."""
    driver = importlib.import_module("cuda.bindings.driver")
    status, *result = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{name} failed: {status}")
    return result[0] if result else None
