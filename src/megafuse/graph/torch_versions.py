"""What older versions of torch call otherwise, or lack."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
# Before 2.12 the checks of values that linalg.inv and its like make were lost when traced.
LOSES_CHECKS = _VERSION < (2, 12)
# Nor did torch.compile see that a model had another dtype (model.double()): it ran what was there.
GUARDS_LESS = _VERSION < (2, 12)


def hints(shapes: ShapeEnv) -> dict[Any, Any]:
    """The size that each symbol had when it was traced; `var_to_val` before torch 2.11."""
    name = "backed_var_to_val" if hasattr(shapes, "backed_var_to_val") else "var_to_val"
    found: dict[Any, Any] = getattr(shapes, name)
    return found


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether it surely has neither gaps nor overlaps. Before torch 2.11 asking may add a guard."""
    common: Any = torch._prims_common
    ask = getattr(common, "is_non_overlapping_and_dense_or_false", None)
    return bool((ask or common.is_non_overlapping_and_dense)(tensor))
