"""rms_norm: over the last dimension; the backward finds the mean square again."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import op


@op(
    family="rows",
    forward="RmsNorm<{F}>",
    backward="RmsNormBackward<{F}>",
    shapes={"x": "...C", "weight": "C"},
    own_dtype=("weight",),
    saves=("x", "weight"),
    grads={"x": 0, "weight": 1},
    ranges={"eps": (0.0, float("inf"))},
    flops=(4, 11),
    sample=lambda draw: (draw.full(), draw.row(), 1e-6),
)
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x / √(mean(x²) + eps)·weight over the last dimension

    weight may have another dtype than x; the result has x's.
    """
    weight = None if weight is None else weight.to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)
