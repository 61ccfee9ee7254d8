"""Second derivatives: a fused backward's gradients once more, as differentiable PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megafuse.registry.declared import Op


def vjp(
    op: Op,
    grads: Sequence[Tensor | None],
    saved: Sequence[Tensor | float | None],
    like: Sequence[Tensor | None],
    args: Sequence[Any],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of one call, in the order of `grads`, None where not wanted.

    Called by the host runtime when a backward is itself differentiated, or when nothing there
    computes it. `args` are the call's numbers and choices by position, None in the tensors'
    places.
    """
    first = next(g for g in grads if g is not None)
    models = [first if t is None else t for t in like]
    numbers = {a.name: v for a, v in zip(op.arguments, args, strict=True) if not a.is_tensor}
    known = numbers | dict(zip(op.autograd.saves, saved, strict=True))
    if op.draws(known):
        raise RuntimeError(
            f"megafuse.{op.name}: with dropout it cannot be differentiated twice, nor where only "
            f"the forward pass had a kernel. Use p=0.0, training=False or megafuse.reference."
            f"{op.name}."
        )
    with torch.enable_grad():
        if op.autograd.vjp is None:
            gradients = _through_reference(op, grads, known, models, wanted)
        elif op.pointwise:
            gradients = op.autograd.vjp(*grads, *saved)
        else:
            gradients = op.autograd.vjp(*grads, **known)
        return [
            _shaped(g, t) if want and g is not None else None
            for g, t, want in zip(gradients, models, wanted, strict=True)
        ]


def _through_reference(
    op: Op,
    grads: Sequence[Tensor | None],
    known: dict[str, Any],
    models: Sequence[Tensor],
    wanted: Sequence[bool],
) -> Sequence[Tensor | None]:
    # An argument that was not saved is merely added: the gradients do not depend on its value.
    chosen = {
        name: known[name] if name in known else torch.zeros_like(model)
        for name, model, want in zip(op.autograd.grads, models, wanted, strict=True)
        if want
    }

    def outputs(*values: Tensor) -> list[Tensor]:
        full = known | dict(zip(chosen, values, strict=True))
        results = op.listed(op.reference(*(full.get(a.name) for a in op.arguments)))
        return [out for out, g in zip(results, grads, strict=True) if g is not None]

    # torch.func rather than torch.autograd: the latter finds no graph inside a vmap (jacrev).
    pull = torch.func.vjp(outputs, *chosen.values())[1]
    found = dict(zip(chosen, pull([g for g in grads if g is not None]), strict=True))
    return [found.get(name) for name in op.autograd.grads]


def _shaped(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient.sum_to_size(like.shape).to(like.dtype)
