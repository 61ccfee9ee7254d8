"""The least an op must do: bytes through memory, arithmetic, launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from megafuse.registry import Op


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
        """Every tensor read once, as stored (a broadcast one is small), the output written once."""
        out = _output(op, args)
        read = sum(_bytes(t) for t in args if isinstance(t, Tensor))
        return Cost(read + _bytes(out), op.flops[0] * out.numel(), 1, _bytes(out))

    @staticmethod
    def of_backward(op: Op, args: Sequence[Any]) -> Cost:
        """The gradient and what was saved read once, each distinct gradient written once.

        Gradients of broadcast arguments are summed in the same launch; adding up its partial
        sums takes one more.
        """
        out = _output(op, args)
        by_name = dict(zip((a.name for a in op.arguments), args, strict=True))
        saved = [out if s == "out" else by_name[s] for s in op.saves]
        wanted = {n: by_name[n] for n in op.grads if isinstance(by_name[n], Tensor)}
        whole = {
            (op.grads[n], t.dtype): t
            for n, t in wanted.items()
            if t.numel() == out.numel() and n not in op.passthrough
        }
        summed = [t for t in wanted.values() if t.numel() != out.numel()]
        read = _bytes(out) + sum(_bytes(t) for t in saved if isinstance(t, Tensor))
        written = sum(_bytes(t) for t in (*whole.values(), *summed))
        launches = int(bool(whole or summed)) + int(bool(summed))
        return Cost(read + written, op.flops[1] * out.numel(), launches, written)


def _bytes(tensor: Tensor) -> int:
    """Bytes of the distinct elements: an expanded dimension counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride != 0 else min(size, 1)
    return count * tensor.element_size()


def _output(op: Op, args: Sequence[Any]) -> Tensor:
    """The output's shape and dtype, on the meta device: nothing is computed."""
    moved = [a.detach().to("meta") if isinstance(a, Tensor) else a for a in args]
    with torch.no_grad():
        return op.reference(*moved)
