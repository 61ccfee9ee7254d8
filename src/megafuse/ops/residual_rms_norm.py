"""residual_rms_norm: dropout, residual sum and RMS norm in one pass."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.ops.norms import one_a_row, rms_norm_vjp
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
    ds, *parameters = rms_norm_vjp(grad, s, weight, eps)
    ds = ds if grad_s is None else ds + grad_s
    return [ds, ds, *parameters]


@op(
    kernel=Rows(
        "ResidualRmsNorm<{F}, {S}, {training}>",
        "ResidualRmsNormBackward<{F}, {training}>",
        random=True,
    ),
    signature=Signature(
        shapes={"x": "...C", "residual": "...C", "weight": "C"},
        ranges={"p": (0.0, 1.0), "eps": (0.0, float("inf"))},
        own_dtype=("residual", "weight"),
        returns=("out", "s"),
    ),
    autograd=Autograd(
        saves=("s", "scale", "weight"),
        grads={"x": 0, "residual": 1, "weight": 2},
        keeps=("scale",),
        kept=lambda x, residual, weight, *_: one_a_row(1, x, residual, weight),
        vjp=_vjp,
    ),
    flops=(6, 13),
    sample=lambda draw: (draw.full(), draw.full(), draw.row(), 0.1, True, 1e-6),
)
def residual_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    p: float = 0.0,
    training: bool = True,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s), s = residual + dropout(x), over the last dimension

    weight may have another dtype than s. The backward draws the dropout's random numbers again, so
    that no mask is stored; they are not those of torch.nn.functional.dropout.
    """
    s = residual + F.dropout(x, p, training)
    weight = None if weight is None else weight.to(s.dtype)
    return F.rms_norm(s, s.shape[-1:], weight, eps), s
