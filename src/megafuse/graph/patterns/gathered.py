"""One element of each row is gathered from what lies in memory, not from what is computed of it.

    gather(f(a, r), i)              → f(gather(a, i), r), r being the same along a row

A loss picks the logarithm of one probability of each row. Where the library is asked for it, a
kernel writes all of them first: of 16 Mi bfloat16 logits 64 MB, for a number a row. So the library
picks one logit of each row, before any kernel runs, and its logarithm is computed with the row's
others. It is still the library that gathers, and raises for an index that is out of bounds.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch

from megafuse.graph.affine import Coordinates, broadcast_at, contiguous, mapped
from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import identity, same
from megafuse.graph.ir import (
    PRIMS,
    Coordinate,
    Extern,
    Graph,
    Input,
    Pointwise,
    Result,
    Size,
    Value,
    View,
    axis,
)
from megafuse.graph.reads import is_memory
from megafuse.graph.storage import base_of, tensor_arguments, view_strides

V = TypeVar("V", bound=Value)
GATHER = torch.ops.aten.gather.default
_MOST_LEAVES = 2  # gathers in place of one: each is a launch
_MOST_VALUES = 40  # computed for the one element as well: a third of what a kernel can have


def with_early_gathers(graph: Graph) -> Graph:
    """Changes the gathers whose source is in memory for nobody else."""
    needed = {out for out in graph.outputs if out is not None}
    externs = [v for v in graph.values if isinstance(v, Extern)]
    needed.update(arg for v in externs if not _picks_one(v) for arg in tensor_arguments(v))
    bases = {base_of(value)[0] for value in needed}
    late = {v for v in externs if _picks_one(v) and base_of(v.args[0])[0] not in bases}
    if not late:
        return graph
    old = iter(graph.values)

    def step(mine: Value) -> Value:
        value = next(old)
        if isinstance(value, Result) and value.extern in late and isinstance(mine, Result):
            return _Pick(mine).made() or mine
        return mine

    return rewrite(graph, step)


def _picks_one(value: Extern) -> bool:
    """Whether it is a gather of one element along its dimension, from what is computed."""
    if value.target is not GATHER:
        return False
    source, dim, index = value.args[:3]
    if not source.shape or len(source.shape) != len(index.shape):
        return False
    one = index.shape[dim] == 1 and not same(source.shape[dim], 1)
    return one and not is_memory(base_of(source)[0])


class _Place(NamedTuple):
    """A value, and where in the domain it is wanted."""

    value: Value
    at: Coordinates


class _Pick:
    """One gather on its way to memory. Its domain is that of the source, as far as the index goes;
    in the end the coordinate along `dim` is the index's."""

    def __init__(self, mine: Result) -> None:
        self.mine = mine
        self.source: Value = mine.extern.args[0]
        self.index: Value = mine.extern.args[2]
        self.dim = int(mine.extern.args[1]) % len(self.index.shape)
        sizes: list[Size] = list(self.index.shape)
        sizes[self.dim] = self.source.shape[self.dim]
        self.domain = tuple(sizes)
        self.leaves: dict[_Place, Value] = {}
        self.known: dict[_Place, Value | None] = {}
        self.begun = self.names = 0

    def made(self) -> Value | None:
        """The value in place of the gather's result; None where that is how it must be."""
        found = self.picked(self.source, identity(self.domain))
        return found if self.leaves else None

    def picked(self, value: Value, at: Coordinates) -> Value | None:
        """The value at these coordinates of the domain, with the index along `dim`."""
        place = _Place(value, at)
        if place not in self.known:
            self.begun += 1
            many = self.begun > _MOST_VALUES
            self.known[place] = None if many else self._picked(value, at)
        return self.known[place]

    def _picked(self, value: Value, at: Coordinates) -> Value | None:
        if not value.shape:
            return value
        if not any(axis(self.dim) in place.free_symbols for place in at):
            return self.seen(value, at)
        if isinstance(value, (Input, Result)):
            return self.gathered(value, at)
        if isinstance(value, View):
            return self.picked(value.source, mapped(value.at, at, self.domain))
        if isinstance(value, Coordinate) and at[value.dim] == axis(self.dim):
            return self.of_index()
        if isinstance(value, Pointwise):
            return self.applied(value, at)
        return None

    def applied(self, value: Pointwise, at: Coordinates) -> Value | None:
        inputs: list[Value] = []
        for operand in value.inputs:
            place = mapped(broadcast_at(operand.shape, value.shape), at, self.domain)
            found = self.picked(operand, place)
            if found is None:
                return None
            inputs.append(found)
        shape = self.index.shape
        return self.named(Pointwise(value.prim, tuple(inputs), dtype=value.dtype, shape=shape))

    def seen(self, value: Value, at: Coordinates) -> Value:
        """What is the same along `dim`."""
        return self.named(View(value, at, dtype=value.dtype, shape=self.index.shape))

    def of_index(self) -> Value:
        if self.index.dtype == torch.int64:
            return self.index
        cast = Pointwise(PRIMS["cast"], (self.index,), dtype=torch.int64, shape=self.index.shape)
        return self.named(cast)

    def gathered(self, value: Input | Result, at: Coordinates) -> Value | None:
        leaf = _Place(value, at)
        if leaf not in self.leaves:
            seen = View(value, at, dtype=value.dtype, shape=self.domain)
            several = len(self.leaves) >= _MOST_LEAVES
            if several or view_strides(value.strides, seen, at) is None:
                return None
            whole = at == identity(self.domain) and self.domain == tuple(value.shape)
            source = value if whole else self.named(seen)
            shape = self.index.shape
            args = (source, self.dim, self.index)
            call = self.named(Extern(GATHER, args, {}, dtype=value.dtype, shape=shape))
            made = Result(call, 0, contiguous(shape), dtype=value.dtype, shape=shape)
            self.leaves[leaf] = self.named(made)
        return self.leaves[leaf]

    def named(self, value: V) -> V:
        self.names += 1
        value.name, value.origin = f"{self.mine.name}_early_{self.names}", self.mine.origin
        return value
