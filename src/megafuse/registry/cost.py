"""The least an op must do: bytes through memory, arithmetic, launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megafuse.registry.declared import Op


# (forward, backward): two numbers, or a function of the arguments that gives them.
Pair = tuple[int, int] | Callable[..., tuple[int, int]]


@dataclass(frozen=True)
class Cost:
    """Bytes that must cross memory once, floating-point operations, kernel launches.

    Of the bytes moved, so many are written.
    """

    bytes_moved: int
    flops: int
    launches: int
    bytes_written: int

    @staticmethod
    def of_forward(op: Op, args: Sequence[Any]) -> Cost:
        """Every tensor read once as stored (a broadcast one is small), each output written once."""
        outputs, _ = results(op, args)
        read = sum(_bytes(t) for t in args if isinstance(t, Tensor)) - _unread(op, args)[0]
        written = sum(_bytes(t) for t in outputs)
        launches = _of(op.launches, args)[0] if op.launches is not None else 1
        return Cost(read + written, _flops(op, args, outputs[0])[0], launches, written)

    @staticmethod
    def of_backward(op: Op, args: Sequence[Any]) -> Cost:
        """The gradients and what was saved read once, each distinct gradient written once.

        Gradients of broadcast arguments are summed in the same launch; adding up its partial
        sums takes one more.
        """
        outputs, kept = results(op, args)
        out, rule = outputs[0], op.autograd
        by_name = dict(zip((a.name for a in op.arguments), args, strict=True))
        by_name |= dict(zip((*op.signature.returns, *rule.keeps), (*outputs, *kept), strict=True))
        wanted = {n: by_name[n] for n in rule.grads if isinstance(by_name[n], Tensor)}
        whole = {
            (rule.grads[n], t.dtype): t
            for n, t in wanted.items()
            if t.numel() == out.numel() and n not in rule.passthrough
        }
        summed = [t for t in wanted.values() if t.numel() != out.numel()]
        saved = [by_name[s] for s in rule.saves if isinstance(by_name[s], Tensor)]
        read = sum(_bytes(t) for t in (*outputs, *saved)) - _unread(op, args)[1]
        written = sum(_bytes(t) for t in (*whole.values(), *summed))
        launches = int(bool(whole or summed)) + int(bool(summed))
        if op.launches is not None:
            launches = _of(op.launches, args)[1]
        return Cost(read + written, _flops(op, args, out)[1], launches, written)


def _of(pair: Pair, args: Sequence[Any]) -> tuple[int, int]:
    return pair(*args) if callable(pair) else pair


def _unread(op: Op, args: Sequence[Any]) -> tuple[int, int]:
    return (0, 0) if op.unread is None else op.unread(*args)


def _flops(op: Op, args: Sequence[Any], out: Tensor) -> tuple[int, int]:
    forward, backward = _of(op.flops, args)
    elements = 1 if callable(op.flops) else out.numel()
    return forward * elements, backward * elements


def _bytes(tensor: Tensor) -> int:
    """Bytes of the distinct elements: an expanded dimension counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 else min(size, 1)
    return count * tensor.element_size()


def results(op: Op, args: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Shapes and dtypes of outputs and kept results, on the meta device: nothing is computed."""
    moved = [a.detach().to("meta") if isinstance(a, Tensor) else a for a in args]
    with torch.no_grad():
        return op.listed(op.reference(*moved)), list(op.autograd.kept(*moved))
