"""One launch for the tensors of a step that share a rule, a dtype and a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from megafuse.optim.operation import Columns, Numbers, step
from megafuse.runtime import loader


@dataclass(frozen=True)
class Batch:
    """Columns of tensors: parameters, gradients, what the rule keeps. The numbers of each row are
    as the rule's struct in kernels/optimizer.h reads them."""

    rule: str
    columns: Columns
    numbers: Numbers


def launch(batches: Sequence[Batch]) -> set[int]:
    """Does the steps. Those that it cannot do (sparse or complex ones, other devices, a machine
    without a compiler) it leaves alone, and returns the ids of their parameters."""
    if loader.load() is None:
        return {id(parameter) for batch in batches for parameter in batch.columns[0]}
    of_rule: dict[str, list[Batch]] = {}
    for batch in batches:
        of_rule.setdefault(batch.rule, []).append(batch)
    return set().union(*(_launch(_together(alike)) for alike in of_rule.values()))


def _together(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    numbers = chain.from_iterable(batch.numbers for batch in batches)
    return Batch(
        batches[0].rule, tuple(list(chain.from_iterable(parts)) for parts in columns), list(numbers)
    )


def _launch(batch: Batch) -> set[int]:
    unfit = step(batch.rule, batch.columns, batch.numbers)
    if not unfit:
        return set()
    # The host did nothing, as these were not to its taste: shards of a DTensor, or a gradient that
    # lies otherwise than its parameter. Those that can be are made so.
    columns = tuple(map(list, batch.columns))
    numbers, parameters = list(batch.numbers), list(batch.columns[0])
    lists: list[list[Any]] = [parameters, numbers, *columns]
    left: set[int] = set()
    while unfit:
        for place in sorted(unfit, reverse=True):
            made = _made_fit([column[place] for column in columns])
            if made is None:
                left.add(id(parameters[place]))
                for each in lists:
                    del each[place]
            else:
                for column, tensor in zip(columns, made, strict=True):
                    column[place] = tensor
        unfit = step(batch.rule, columns, numbers)
    return left


def _made_fit(row: Sequence[Tensor]) -> list[Tensor] | None:
    """The row as plain tensors that lie alike, or None if it cannot be or was so before."""
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
    made = [parameter, gradient, *kept]
    alike = all(t.stride() == parameter.stride() and t.dtype == parameter.dtype for t in made)
    changed = any(now is not before for now, before in zip(made, row, strict=True))
    return made if alike and changed else None


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
