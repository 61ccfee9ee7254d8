"""layer_norm: over the last dimension; for the backward mean and scale of each row are kept."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.ops.norms import layer_norm_vjp, one_a_row
from megafuse.registry import Autograd, Rows, Signature, op


@op(
    kernel=Rows("LayerNorm<{F}, {S}>", "LayerNormBackward<{F}>"),
    signature=Signature(
        shapes={"x": "...C", "weight": "C", "bias": "C"},
        ranges={"eps": (0.0, float("inf"))},
        own_dtype=("weight", "bias"),
        autocast="float32",
    ),
    autograd=Autograd(
        saves=("x", "mean", "scale", "weight"),
        grads={"x": 0, "weight": 1, "bias": 2},
        keeps=("mean", "scale"),
        kept=lambda x, weight, bias, *_: one_a_row(2, x, weight, bias),
        vjp=lambda grad, *, x, weight, eps, **_: layer_norm_vjp(grad, x, weight, eps),
    ),
    flops=(8, 13),
    sample=lambda draw: (draw.full(), draw.row(), draw.row(), 1e-5),
)
def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x − mean) / √(variance + eps)·weight + bias over the last dimension

    weight and bias may have another dtype than x; the result has x's.
    """
    weight = None if weight is None else weight.to(x.dtype)
    bias = None if bias is None else bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
