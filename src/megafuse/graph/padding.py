"""Rows that get zeros behind their last element where they are written.

A product's factor whose rows are no whole 16 bytes is padded (patterns/padded.py): Gather(x, at, 0)
of rows that are a few elements longer. A kernel that has x in registers writes it to rows that far
apart, and the zeros beside it; nobody writes x a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from megafuse.graph.affine import contiguous
from megafuse.graph.coordinates import identity, is_known, same
from megafuse.graph.ir import Extern, Gather, Reduce, Size, Value
from megafuse.graph.reads import is_memory
from megafuse.graph.storage import Strides, base_of, is_free, view_strides

_MOST = 7  # zeros: eight numbers of 16 bits are 16 bytes


class Padded(NamedTuple):
    """What a value becomes, and the shape of memory that holds both."""

    whole: Gather
    memory: tuple[Size, ...]


def padded_in_place(
    values: Iterable[Value], stored: Mapping[Value, Strides | None]
) -> dict[Value, Padded]:
    """For each value that is written so, what it becomes: of those that may lie as they like."""
    found: dict[Value, Padded] = {}
    for value in values:
        if not isinstance(value, Gather) or stored.get(value) is not None:
            continue
        x, at = base_of(value.source)
        made_by_kernel = not (is_memory(x) or is_free(x) or isinstance(x, (Extern, Reduce)))
        if not made_by_kernel or stored.get(x) is not None or not _zeros_behind(value):
            continue
        if not x.shape or not same(x.shape[-1], value.source.shape[-1]):
            continue
        memory = (*x.shape[:-1], value.shape[-1])
        seen = view_strides(contiguous(memory), value.source, at)
        if seen == (contiguous(value.shape), 0):
            found.setdefault(x, Padded(value, memory))
    return found


def _zeros_behind(value: Gather) -> int:
    """How many there are in each row; 0 where this is something else."""
    x = value.source
    if value.otherwise != 0.0 or len(x.shape) != 2 or value.at != identity(x.shape):
        return 0
    columns, all_columns = x.shape[-1], value.shape[-1]
    if not same(x.shape[0], value.shape[0]) or not (is_known(columns) and is_known(all_columns)):
        return 0
    more = int(all_columns) - int(columns)
    return more if 0 < more <= _MOST else 0
