"""residual_layer_norm: dropout, residual sum and layer norm in one pass."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.ops.norms import layer_norm_vjp, one_a_row
from megafuse.registry import Autograd, Rows, Signature, op


def _vjp(
    grad: Tensor,
    grad_s: Tensor | None,
    *,
    s: Tensor,
    weight: Tensor | None,
    eps: float,
    **_: object,
) -> list[Tensor | None]:
    """Without dropout: x and residual have the same gradient."""
    ds, *parameters = layer_norm_vjp(grad, s, weight, eps)
    ds = ds if grad_s is None else ds + grad_s
    return [ds, ds, *parameters]


@op(
    kernel=Rows(
        "ResidualLayerNorm<{F}, {S}, {training}>",
        "ResidualLayerNormBackward<{F}, {training}>",
        random=True,
    ),
    signature=Signature(
        shapes={"x": "...C", "residual": "...C", "weight": "C", "bias": "C"},
        ranges={"p": (0.0, 1.0), "eps": (0.0, float("inf"))},
        own_dtype=("residual", "weight", "bias"),
        returns=("out", "s"),
        autocast="float32",
    ),
    autograd=Autograd(
        saves=("s", "mean", "scale", "weight"),
        grads={"x": 0, "residual": 1, "weight": 2, "bias": 3},
        keeps=("mean", "scale"),
        kept=lambda x, residual, weight, bias, *_: one_a_row(2, x, residual, weight, bias),
        vjp=_vjp,
    ),
    flops=(10, 19),
    sample=lambda draw: (draw.full(), draw.full(), draw.row(), draw.row(), 0.1, True, 1e-5),
)
def residual_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    p: float = 0.0,
    training: bool = True,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(s), s), s = residual + dropout(x), over the last dimension

    weight and bias may have another dtype than s. The backward draws the dropout's random numbers
    again, so that no mask is stored; they are not those of torch.nn.functional.dropout.
    """
    s = residual + F.dropout(x, p, training)
    weight = None if weight is None else weight.to(s.dtype)
    bias = None if bias is None else bias.to(s.dtype)
    return F.layer_norm(s, s.shape[-1:], weight, bias, eps), s
