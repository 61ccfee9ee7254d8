"""What a value reads, seen through views and through what costs nothing to compute again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sympy

from megafuse.graph.affine import Coordinates, broadcast_at, mapped
from megafuse.graph.coordinates import identity
from megafuse.graph.cost import MOVED_COST, is_as_large, is_light, prim_cost
from megafuse.graph.ir import (
    Constant,
    Coordinate,
    Extern,
    Gather,
    Input,
    Number,
    Pointwise,
    Reduce,
    Result,
    Size,
    Value,
    View,
)
from megafuse.graph.numbers import number_of

# Of one tensor that a value is computed from, again by each reader: slices are an operand each.
_MOST_PLACES = 12


@dataclass(frozen=True)
class Read:
    """A value that is read at `at`, written in the reader's axes. Not `exact`: through a masked
    load, or at computed places (`at` is None): never the same element that the reader is."""

    value: Value
    at: Coordinates | None
    exact: bool = True


@dataclass(frozen=True)
class Cone:
    """What it takes to compute an element anew: multiplications, and the bytes of memory it reads
    that has as many elements. `reduces`: whether a reduction is in it, so that it cannot be.
    `places`: how many elements of its leaves it reads, at most."""

    cost: int = 0
    leaves: frozenset[Value] = frozenset()
    reduces: bool = False
    places: int = 0

    def bytes(self, like: Value) -> int:
        return sum(v.dtype.itemsize for v in self.leaves if is_as_large(v.shape, like.shape))


def is_memory(value: Value) -> bool:
    return isinstance(value, (Input, Result))


def direct(value: Value) -> list[Read]:
    """The operands as the value itself reads them. Of a Reduce: in its source's axes."""
    if isinstance(value, Pointwise):
        return [Read(o, broadcast_at(o.shape, value.shape)) for o in value.inputs]
    if isinstance(value, View):
        return [Read(value.source, tuple(map(sympy.sympify, value.at)))]
    if isinstance(value, Gather):
        return list(_of_gather(value))
    if isinstance(value, Reduce):
        return [Read(value.source, identity(value.source.shape))]
    return []


def _of_gather(value: Gather) -> Iterator[Read]:
    places = [a for a in value.at if isinstance(a, Value)]
    if places:
        yield Read(value.source, None, exact=False)
    else:
        at = tuple(sympy.sympify(a) for a in value.at)
        yield Read(value.source, at, exact=value.otherwise is None)
    for place in places:
        yield Read(place, broadcast_at(place.shape, value.shape))


class Reads:
    """Reads of one graph. `solid` are values that have their own place: memory, members of
    clusters, what must be stored; all others are seen through."""

    def __init__(self, values: list[Value], stored: set[Value], calls: set[Value]) -> None:
        kept = stored | calls
        self.cones: dict[Value, Cone] = {}
        self.solid: set[Value] = set()
        self.readers: dict[Value, list[tuple[Value, Read]]] = {}  # of solid values, if asked for
        self._found: dict[Value, list[Read]] = {}
        for value in values:
            cone = self._cone(value)
            self.cones[value] = cone
            own = is_memory(value) or isinstance(value, Extern) or value in kept
            if own or not self._is_through(value, cone):
                self.solid.add(value)

    def _is_through(self, value: Value, cone: Cone) -> bool:
        if isinstance(value, (Constant, Number, Coordinate)):
            return True
        if isinstance(value, View) or number_of(value) is not None:
            return True
        if cone.reduces or isinstance(value, Reduce):
            return isinstance(value, Reduce) and not value.dims
        if not cone.leaves and not any(size != 1 for size in value.shape):
            return cone.cost <= MOVED_COST  # made of the call's numbers: no kernel for one number
        if cone.places > _MOST_PLACES:
            return False
        memory = {v for v in cone.leaves if is_memory(v)}
        if memory != cone.leaves or len(memory) > 1:
            return False
        leaf_bytes = sum(v.dtype.itemsize for v in memory)
        return is_light(cone.cost, leaf_bytes, value.dtype.itemsize)

    def _cone(self, value: Value) -> Cone:
        if is_memory(value):
            return Cone(leaves=frozenset({value}))
        if number_of(value) is not None:
            return Cone()
        cost, places, leaves = 0, 0, set()
        reduces = isinstance(value, Reduce) and bool(value.dims)
        if isinstance(value, Pointwise):
            cost = prim_cost(value.prim, value.dtype)
        elif isinstance(value, Gather):
            cost = 4
        for operand in value.operands:
            cone = self.cones[operand]
            if operand in self.solid:
                leaves.add(operand)
                places += 1
            else:
                cost += cone.cost
                places += cone.places
                leaves |= cone.leaves
                reduces |= cone.reduces
        return Cone(cost, frozenset(leaves), reduces, places)

    def of(self, value: Value) -> list[Read]:
        """The solid values that it reads."""
        found = self._found.get(value)
        if found is None:
            shape = value.source.shape if isinstance(value, Reduce) else value.shape
            found = self._found[value] = list(self._seen(direct(value), shape))
            if value in self.solid:
                for read in found:
                    self.readers.setdefault(read.value, []).append((value, read))
        return found

    def _seen(self, reads: list[Read], shape: tuple[Size, ...]) -> Iterator[Read]:
        known: set[tuple[Value, object, bool]] = set()
        stack = list(reversed(reads))
        while stack:
            read = stack.pop()
            key = (read.value, read.at, read.exact)
            if key in known:
                continue
            known.add(key)
            if read.value in self.solid:
                yield read
                continue
            for inner in reversed(direct(read.value)):
                at = None
                if inner.at is not None and read.at is not None:
                    at = mapped(inner.at, read.at, shape)
                stack.append(Read(inner.value, at, inner.exact and read.exact and at is not None))
