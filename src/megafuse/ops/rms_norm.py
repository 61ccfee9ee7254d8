"""rms_norm: over the last dimension; for the backward the scale of each row is kept."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.ops.norms import one_a_row, rms_norm_vjp
from megafuse.registry import Autograd, Rows, Signature, op


@op(
    kernel=Rows("RmsNorm<{F}>", "RmsNormBackward<{F}>"),
    signature=Signature(
        shapes={"x": "...C", "weight": "C"},
        ranges={"eps": (0.0, float("inf"))},
        own_dtype=("weight",),
    ),
    autograd=Autograd(
        saves=("x", "scale", "weight"),
        grads={"x": 0, "weight": 1},
        keeps=("scale",),
        kept=lambda x, weight, *_: one_a_row(1, x, weight),
        vjp=lambda grad, *, x, weight, eps, **_: rms_norm_vjp(grad, x, weight, eps),
    ),
    flops=(4, 9),
    sample=lambda draw: (draw.full(), draw.row(), 1e-6),
)
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x / √(mean(x²) + eps)·weight over the last dimension

    weight may have another dtype than x; the result has x's.
    """
    weight = None if weight is None else weight.to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)
