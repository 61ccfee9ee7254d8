"""Arguments to measure on: several sets in turn, each with other values before it is used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megafuse.bench.accuracy import leaves

if TYPE_CHECKING:
    from megafuse.bench.job import Job


class Arguments:
    """Three sets. New values come from a fourth, rolled: at the same addresses, in no time.

    A dimension of a few elements has few rolls, so it is shuffled: what lies in freed memory from
    an earlier turn would else be right again too soon.
    """

    SETS = 3

    def __init__(self, job: Job) -> None:
        self.sets = [job.arguments() for _ in range(self.SETS)]
        self._spare = job.arguments()
        self._turn = 0
        self._all = job.integers_are_data
        # A model's weights stay as they are from one forward call to the next; after a backward
        # one an optimizer changes them.
        self._staying = frozenset() if job.mode == "forward+backward" else job.weights

    def __getitem__(self, i: int) -> list[Any]:
        return self.sets[i % self.SETS]

    def refresh(self, i: int) -> int:
        """New values, as between two calls of a model; returns the turn that has them."""
        self._turn += 1
        self._roll(i, self._turn, self._staying)
        return self._turn

    def renew(self, i: int, turn: int) -> None:
        """The values of this turn in every tensor: those of the spare set, rolled so far."""
        self._roll(i, turn)

    def _roll(self, i: int, turn: int, staying: frozenset[int] = frozenset()) -> None:
        with torch.no_grad():
            for at, (mine, spare) in enumerate(zip(self[i], self._spare, strict=True)):
                if at in staying:
                    continue
                for target, source in zip(leaves(mine), leaves(spare), strict=True):
                    if self._all or target.is_floating_point():
                        _roll_into(target, source, turn)


_SHUFFLED = 1024  # elements along the longest dimension


def copied(value: Any) -> Any:
    """A copy with the same strides: an expanded tensor is read from the cache, a dense one not."""
    if not isinstance(value, Tensor):
        return value
    own = _unexpanded(value.detach())
    if _overlapping(own) or own.layout != torch.strided:
        return value.detach().clone()
    made = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype, device=own.device)
    return made.copy_(own).expand(value.shape)


def _roll_into(target: Tensor, source: Tensor, turn: int) -> None:
    target, source = _unexpanded(target), _unexpanded(source)
    if target.layout != torch.strided or not target.numel() or _overlapping(target):
        return
    dim = max(range(target.dim()), key=lambda d: target.shape[d], default=None)
    if dim is None:
        return
    size = target.shape[dim]
    if turn and size <= _SHUFFLED:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(turn))
        target.copy_(source.index_select(dim, order.to(source.device)))
        return
    by = (turn * 7919) % size  # a prime, so that all shifts come up
    target.narrow(dim, 0, size - by).copy_(source.narrow(dim, by, size - by))
    if by:
        target.narrow(dim, size - by, by).copy_(source.narrow(dim, 0, by))


def _unexpanded(t: Tensor) -> Tensor:
    """The elements that are there, each once."""
    if t.layout != torch.strided:
        return t
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        if size > 1 and stride == 0:
            t = t.narrow(dim, 0, 1)
    return t


def _overlapping(t: Tensor) -> bool:
    """Whether two elements may share memory: as in windows that slide."""
    reach = 1
    for size, stride in sorted(zip(t.shape, t.stride(), strict=True), key=lambda d: d[1]):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False
