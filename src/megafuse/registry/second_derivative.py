"""Second derivatives: a fused backward's gradients once more, as differentiable PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megafuse.registry import Op


def vjp(
    op: Op,
    grad: Tensor,
    saved: Sequence[Tensor | float],
    like: Sequence[Tensor | None],
    args: Sequence[Any],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of one call, in the order of op.grads, None where not wanted.

    Called by the host runtime when a backward is itself differentiated. `args` are the call's
    numbers and choices by position, None in the tensors' places.
    """
    with torch.enable_grad():
        if op.vjp is not None:
            gradients: Sequence[Tensor | None] = op.vjp(grad, *saved)
        else:
            gradients = _through_reference(op, grad, saved, args, wanted)
        return [
            _shaped(g, t if t is not None else grad) if want and g is not None else None
            for g, t, want in zip(gradients, like, wanted, strict=True)
        ]


def _through_reference(
    op: Op, grad: Tensor, saved: Sequence[Any], args: Sequence[Any], wanted: Sequence[bool]
) -> list[Tensor | None]:
    full = list(args)
    for name, value in zip(op.saves, saved, strict=True):
        full[op.position(name)] = value
    chosen = [full[op.position(n)] for n, want in zip(op.grads, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(op.reference(*full), chosen, grad, create_graph=True))
    return [next(found) if want else None for want in wanted]


def _shaped(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient.sum_to_size(like.shape).to(like.dtype)
