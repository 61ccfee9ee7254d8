"""An op's autograd rule: what the backward reads, and whose gradients it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


def nothing_kept(*args: Any) -> Sequence[Tensor]:
    """`Autograd.kept` where there is nothing that only the backward reads."""
    return []


@dataclass(frozen=True, kw_only=True)
class Autograd:
    """The rule; an op without gradients has an empty one.

    saves           what the backward reads after the gradients, in its order: names of arguments,
                    of the signature's `returns` and of `keeps`
    grads           argument → which result of the backward is its gradient
    passthrough     arguments whose gradient is the incoming one, as they are merely added: the
                    backward functor need not return it, and where such an argument is broadcast
                    the incoming one is summed (not in rows)
    keeps           names of results that only the backward reads
    kept            (*args) → tensors like these, made with new_empty
    vjp             gradients in the order of `grads`, in plain PyTorch, for second derivatives:
                    (grad, *saves) →, or where the op is not pointwise (*grads, **everything saved,
                    numbers and choices, by name) →. Found from the reference when all arguments
                    that matter are saved
    """

    saves: tuple[str, ...] = ()
    grads: Mapping[str, int] = field(default_factory=dict)
    passthrough: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    kept: Callable[..., Sequence[Tensor]] = nothing_kept
    vjp: Callable[..., Sequence[Tensor | None]] | None = None
