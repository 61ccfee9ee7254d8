"""One launch for the tensors of a step that share a rule, a dtype and a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megafuse.optim.operation import step
from megafuse.runtime import loader

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Batch:
    """Columns of tensors: parameters, gradients, what the rule keeps. The numbers of each row are
    as the rule's struct in kernels/optimizer.h reads them."""

    rule: str
    columns: tuple[list[Tensor], ...]
    numbers: list[tuple[float, ...]]


class _Rows:
    """Rows of batches that go into one launch."""

    def __init__(self, wide: int) -> None:
        self.columns: tuple[list[Tensor], ...] = tuple([] for _ in range(wide))
        self.numbers: list[tuple[float, ...]] = []

    def add(self, row: Iterable[Tensor], numbers: tuple[float, ...]) -> None:
        for column, tensor in zip(self.columns, row, strict=True):
            column.append(tensor)
        self.numbers.append(numbers)


def launch(batches: Sequence[Batch]) -> set[int]:
    """Does the steps. Those that it cannot do (sparse or complex ones, other devices, a machine
    without a compiler) it leaves alone, and returns the ids of their parameters."""
    can_launch = loader.load() is not None
    together: dict[tuple[str, torch.dtype, torch.device], _Rows] = {}
    for batch in batches:
        for *row, numbers in zip(*batch.columns, batch.numbers, strict=True):
            key = batch.rule, row[0].dtype, row[0].device
            rows = together.setdefault(key, _Rows(len(row)))
            rows.add(row, numbers)
    left: set[int] = set()
    for (rule, dtype, device), rows in together.items():
        known = can_launch and dtype in _DTYPES and device.type in ("cpu", "cuda")
        if not known or not step(rule, rows.columns, rows.numbers):
            left |= _one_by_one(rule, rows) if known else set(map(id, rows.columns[0]))
    return left


def _one_by_one(rule: str, rows: _Rows) -> set[int]:
    """The host did nothing, as at least one of them was not to its taste: shards of a DTensor, or a
    gradient that lies otherwise than its parameter. Those that can be are made so."""
    fit = _Rows(len(rows.columns))
    taken: set[int] = set()
    left: set[int] = set()
    for *row, numbers in zip(*rows.columns, rows.numbers, strict=True):
        made = _made_fit(row)
        (left if made is None else taken).add(id(row[0]))
        if made is not None:
            fit.add(made, numbers)
    return left if taken and step(rule, fit.columns, fit.numbers) else left | taken


def _made_fit(row: Sequence[Tensor]) -> list[Tensor] | None:
    """The row as plain tensors that lie alike, or None."""
    local = _local(row)
    if local is None:
        return None
    parameter, gradient, *kept = local
    if gradient.layout != torch.strided or gradient.device != parameter.device:
        return None
    if gradient.shape != parameter.shape or gradient.dtype != parameter.dtype:
        return None
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_like(parameter).copy_(gradient)
    alike = all(
        t.stride() == parameter.stride() and t.dtype == parameter.dtype for t in (gradient, *kept)
    )
    return [parameter, gradient, *kept] if alike else None


def _local(row: Sequence[Tensor]) -> list[Tensor] | None:
    """What this rank has of a row. A step is element by element, so that shards take theirs alone,
    but a gradient that is still to be summed up over ranks is not one."""
    if all(isinstance(t, torch.nn.Parameter) or type(t) is Tensor for t in row):
        return list(row)
    from torch.distributed.tensor import DTensor

    if not all(isinstance(t, DTensor) for t in row):
        return None
    shards: list[Any] = list(row)
    placements = shards[0].placements
    if any(t.placements != placements for t in shards) or any(p.is_partial() for p in placements):
        return None
    return [t.to_local() for t in shards]
