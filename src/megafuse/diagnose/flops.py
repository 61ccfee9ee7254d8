"""Floating-point operations of an ATen call.

Products are counted by torch's own formulas (torch.utils.flop_counter), others by element: what a
vector unit spends on it, in multiplications.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils import flop_counter

# Multiplications an element, as prims of the compiler count them; all others are 1.
_COSTS = {
    "exp": 10, "log": 10, "tanh": 14, "sigmoid": 12, "gelu": 18, "silu": 12, "erf": 16, "sin": 14,
    "cos": 14, "pow": 20, "softplus": 20, "mish": 28, "rsqrt": 4, "sqrt": 4, "div": 3, "elu": 10,
    "_softmax": 14, "_log_softmax": 14, "native_layer_norm": 8, "native_dropout": 8,
    "_softmax_backward_data": 5, "gelu_backward": 24, "tanh_backward": 3, "silu_backward": 16,
    "native_layer_norm_backward": 12, "_log_softmax_backward_data": 14,
}  # fmt: skip


def flops(func: Any, kind: str, args: Any, kwargs: Any, out: Any) -> int:
    """Of one call; 0 for what computes nothing, or cannot be counted."""
    if kind in ("product", "attention"):
        return _product(func, args, kwargs, out)
    if kind not in ("pointwise", "reduction"):
        return 0
    first = next((a for a in args if isinstance(a, Tensor)), None)
    result = out if isinstance(out, Tensor) else next(iter(_tensors(out)), None)
    sizes = [t.numel() for t in (first, result) if t is not None]
    name = str(func._schema.name).partition("::")[2]
    return max(sizes, default=0) * cost(name)


def cost(name: str) -> int:
    return _COSTS.get(name) or _COSTS.get(name.removesuffix("_"), 1)


def _product(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    formula = flop_counter.flop_registry.get(func._overloadpacket)
    if formula is not None:
        try:
            return int(formula(*args, **kwargs, out_val=out))
        except Exception:  # a formula may not know an argument of a newer torch
            return 0
    name = str(func._schema.name).partition("::")[2]
    tensors = [a for a in args if isinstance(a, Tensor)]
    if name in ("linear", "mkldnn_linear", "_linear_pointwise") and len(tensors) > 1:
        return 2 * tensors[0].numel() * tensors[1].shape[0]
    if name in ("mv", "dot", "vdot"):
        return 2 * tensors[0].numel()
    if name == "addmv":
        return 2 * tensors[1].numel()
    if name in ("matmul", "addbmm") and isinstance(out, Tensor) and len(tensors) > 1:
        return 2 * out.numel() * tensors[-2].shape[-1]
    return 0


def _tensors(out: Any) -> list[Tensor]:
    return [t for t in out if isinstance(t, Tensor)] if isinstance(out, (list, tuple)) else []


def of_product(rows: int, inner: int, columns: int, batch: int = 1) -> int:
    """2·M·K·N of each matrix."""
    return 2 * math.prod((rows, inner, columns, batch))
