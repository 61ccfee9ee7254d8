"""A value at one place of each row: what it is made from is read there alone."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch

from megafuse.graph.affine import Coordinates, broadcast_at, mapped
from megafuse.graph.ir import (
    PRIMS,
    Coordinate,
    Input,
    Pointwise,
    Result,
    Size,
    Value,
    View,
    axis,
)

V = TypeVar("V", bound=Value)
_MOST_VALUES = 40  # computed for the one element as well: a third of what a kernel can have


class Place(NamedTuple):
    """A value, and where in the domain it is wanted."""

    value: Value
    at: Coordinates


class Picked:
    """Values of a domain with the index in place of the coordinate along `dim`. The index has size
    1 there, and is as large as the domain in all other dimensions.

    What is new is named after `mine`, in whose place it comes.
    """

    names = 0  # given so far

    def __init__(self, index: Value, dim: int, size: Size, mine: Value) -> None:
        self.index, self.mine = index, mine
        self.dim = dim % len(index.shape)
        sizes: list[Size] = list(index.shape)
        sizes[self.dim] = size
        self.domain = tuple(sizes)
        self.known: dict[Place, Value | None] = {}
        self.begun = 0

    def at(self, value: Value, at: Coordinates) -> Value | None:
        """The value at these coordinates of the domain, in the index's shape; None where it is not
        so easily had."""
        place = Place(value, at)
        if place not in self.known:
            self.begun += 1
            many = self.begun > _MOST_VALUES
            self.known[place] = None if many else self._at(value, at)
        return self.known[place]

    def loaded(self, value: Input | Result, at: Coordinates) -> Value | None:
        """The same of what is in memory, and not the same along `dim`."""
        raise NotImplementedError

    def is_steady(self, at: Coordinates) -> bool:
        """Whether what is read at these coordinates is the same along `dim`."""
        return not any(axis(self.dim) in place.free_symbols for place in at)

    def _at(self, value: Value, at: Coordinates) -> Value | None:
        if not value.shape:
            return value
        if self.is_steady(at):
            return self.named(View(value, at, dtype=value.dtype, shape=self.index.shape))
        if isinstance(value, (Input, Result)):
            return self.loaded(value, at)
        if isinstance(value, View):
            return self.at(value.source, mapped(value.at, at, self.domain))
        if isinstance(value, Coordinate) and at[value.dim] == axis(self.dim):
            return self._index()
        if isinstance(value, Pointwise):
            return self._applied(value, at)
        return None

    def _applied(self, value: Pointwise, at: Coordinates) -> Value | None:
        inputs: list[Value] = []
        for operand in value.inputs:
            place = mapped(broadcast_at(operand.shape, value.shape), at, self.domain)
            found = self.at(operand, place)
            if found is None:
                return None
            inputs.append(found)
        shape = self.index.shape
        return self.named(Pointwise(value.prim, tuple(inputs), dtype=value.dtype, shape=shape))

    def _index(self) -> Value:
        if self.index.dtype == torch.int64:
            return self.index
        cast = Pointwise(PRIMS["cast"], (self.index,), dtype=torch.int64, shape=self.index.shape)
        return self.named(cast)

    def named(self, value: V) -> V:
        self.names += 1
        value.name = f"{self.mine.name}_picked_{self.names}"
        value.origin = self.mine.origin
        return value
