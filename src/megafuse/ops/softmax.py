"""softmax: of a scaled and masked row, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.codegen import tuning
from megafuse.codegen.variant import Variant
from megafuse.registry import Autograd, Rows, Sharding, Signature, op


def _problem(x: Tensor, scale: float, mask: Tensor | None, causal: bool) -> str | None:
    if causal and x.dim() < 2:
        return f"causal=True needs rows and columns, but 'x' is {list(x.shape)}"
    if mask is not None:
        try:
            fits = torch.broadcast_shapes(x.shape, mask.shape) == x.shape
        except RuntimeError:
            fits = False
        if not fits:
            return (
                f"argument 'mask' must broadcast to the shape of 'x' {list(x.shape)}, "
                f"got {list(mask.shape)}"
            )
    return None


def _unread(x: Tensor, scale: float, mask: Tensor | None, causal: bool) -> tuple[int, int]:
    """What lies right of the diagonal: of x and a mask, and in the backward of out and its grad."""
    if not causal or x.dim() < 2:
        return 0, 0
    rows, columns = x.shape[-2:]
    crossed = min(rows, columns)
    right = crossed * (columns - 1) - crossed * (crossed - 1) // 2
    one = x.numel() // max(rows * columns, 1) * right * x.element_size()
    return one * (2 if mask is not None and mask.shape == x.shape else 1), 2 * one


def _words(variant: Variant) -> dict[str, str]:
    """Whether exponentials are taken again for the result: where rows wait in shared memory."""
    again = variant.device == "cuda" and tuning.rows.shape(variant).ring > 0
    return {"again": str(again).lower()}


def _vjp(grad: Tensor, *, out: Tensor, scale: float, **_: object) -> list[Tensor]:
    dz = out * (grad - (grad * out).sum(-1, keepdim=True))
    return [dz * scale, dz]


@op(
    kernel=Rows(
        "Softmax<{F}, {S}, {causal}, {again}>", "SoftmaxBackward<{F}, {causal}>", words=_words
    ),
    signature=Signature(
        shapes={"x": "...C"}, own_dtype=("mask",), check=_problem, autocast="float32"
    ),
    autograd=Autograd(saves=("out",), grads={"x": 0, "mask": 1}, vjp=_vjp),
    sharding=Sharding(spread={"mask": "...C"}, whole={"causal": -2}),
    flops=(12, 5),
    unread=_unread,
    sample=lambda draw: (draw.full(), 0.5, draw.full() if draw.gives("mask") else None, False),
)
def softmax(
    x: Tensor, scale: float = 1.0, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """softmax(scale·x + mask) over the last dimension

    `mask` is added, and broadcasts to x. With `causal`, column j of row i (of the dimension before
    the last) takes no part where j > i. A row that is all −Inf gives NaN.
    """
    z = x * scale
    if mask is not None:
        z = z + mask
    if causal:
        kept = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
        z = z.masked_fill(~kept, -torch.inf)
    return torch.softmax(z, -1)
