"""Ladders by PyTorch alone, for a machine that cannot compile the rungs.

The last rung is megafuse's op as on any machine; it runs its reference here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn.ladder.rung import Rung
from megafuse.learn.ledger import Ledger, count
from megafuse.ops import OPS

WHY = (
    "The rungs cannot be compiled here (`megafuse doctor` says what is missing and how to get it), "
    "so PyTorch's own operations climb in their place. What keeps data near the processor is then "
    "the cache: work on pieces that fit in it."
)
_PIECE = 1 << 15  # floats: 128 KiB


@dataclass(frozen=True)
class Plain(Rung):
    """A rung of PyTorch's operations; their bytes are counted as they run."""

    one_pass: bool = field(
        default=False, kw_only=True
    )  # memory sees x and the result once, whatever happens in between

    def ledger(self, *arguments: Any) -> Ledger:
        if not self.one_pass:
            return count(lambda: self.run(*arguments))
        x: Tensor = arguments[0]
        return Ledger((self.name,), 2 * x.nbytes)


def _rung(name: str, change: str, run: Callable[..., Tensor], one_pass: bool = False) -> Plain:
    return Plain(name, change, change, run, None, one_pass=one_pass)


def gelu_scale() -> tuple[Rung, ...]:
    def separate(x: Tensor, scale: float) -> Tensor:
        return F.gelu(x, approximate="tanh") * scale

    def in_pieces(x: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(x)
        for piece, result in zip(x.split(_PIECE), out.split(_PIECE), strict=True):
            torch.mul(F.gelu(piece, approximate="tanh"), scale, out=result)
        return out

    return (
        _rung("two operations", "gelu's result goes out to memory and comes back", separate),
        _rung("in pieces", "128 KiB at a time: gelu's result stays in the cache", in_pieces, True),
        _rung("megafuse.gelu_scale", "its reference: as the first", OPS["gelu_scale"].fused),
    )


def layer_norm() -> tuple[Rung, ...]:
    def by_definition(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        away = x - x.mean(-1, keepdim=True)
        variance = (away * away).mean(-1, keepdim=True)
        return away * torch.rsqrt(variance + eps) * weight + bias

    def in_pieces(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        rows = max(1, _PIECE // x.shape[-1])
        return torch.cat([by_definition(part, weight, bias, eps) for part in x.split(rows)])

    def one_operation(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weight, bias, eps)

    return (
        _rung("by definition", "mean, variance and the rest, each over all of x", by_definition),
        _rung(
            "in pieces", "128 KiB at a time: what is between stays in the cache", in_pieces, True
        ),
        _rung("F.layer_norm", "PyTorch's own kernel: fused already", one_operation, True),
        _rung("megafuse.layer_norm", "its reference: the same", OPS["layer_norm"].fused, True),
    )


def linear_relu() -> tuple[Rung, ...]:
    def by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows = [(weight * row).sum(-1) + bias for row in x]
        return torch.stack(rows).relu()

    return (
        _rung("products by hand", "multiply, add up: a row at a time", by_hand),
        _rung("megafuse.linear_relu", "its reference: two operations", OPS["linear_relu"].fused),
    )
