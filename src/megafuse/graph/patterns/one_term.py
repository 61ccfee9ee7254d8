"""A sum of which one term of each row is not 0 is that term:

    sum(where(column == i, x, 0))       → where(0 <= i < columns, x at i, 0)

A loss picks the logarithm of one probability of each row, and its gradient adds up what is 0 but
for one place: both had a pass over the row, with a comparison for each of its elements. The one
term is read where it lies, or made from what is the same all along the row.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from megafuse.graph.affine import Coordinates, broadcast_at, mapped
from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import identity
from megafuse.graph.ir import (
    PRIMS,
    Constant,
    Coordinate,
    Gather,
    Graph,
    Input,
    Pointwise,
    Reduce,
    Result,
    Size,
    Value,
    View,
    axis,
)
from megafuse.graph.patterns.picked import Picked, Place
from megafuse.graph.patterns.written import is_number, is_prim


def without_one_term_sums(graph: Graph) -> Graph:
    """With the term in place of the sum."""
    return rewrite(graph, lambda value: _found(value) or value)


def _found(value: Value) -> Value | None:
    if not isinstance(value, Reduce) or value.kind != "sum" or len(value.dims) != 1:
        return None
    terms = value.source
    if is_prim(terms, "cast") and terms.dtype == value.dtype:
        (terms,) = terms.operands
    if value.parts or not isinstance(terms, Pointwise) or not is_prim(terms, "where"):
        return None
    test, term, other = terms.inputs
    if not is_number(other, 0.0):
        return None
    (dim,) = value.dims
    tests = list(_all_of(_read(test, terms), terms.shape))
    for seen in tests:
        index = _index(seen, dim, terms.shape)
        if index is not None:
            others = [each for each in tests if each is not seen]
            one = _Term(index, dim, terms.shape, value)
            return one.in_place_of_sum(_read(term, terms), others)
    return None


def _read(operand: Value, by: Value) -> Place:
    return Place(operand, broadcast_at(operand.shape, by.shape))


def _below(seen: Place, domain: tuple[Size, ...]) -> Place:
    """Through views."""
    value, at = seen
    while isinstance(value, View):
        at, value = mapped(value.at, at, domain), value.source
    return Place(value, at)


def _inputs(seen: Place, domain: tuple[Size, ...]) -> Iterator[Place]:
    for operand in seen.value.operands:
        yield Place(operand, mapped(_read(operand, seen.value).at, seen.at, domain))


def _all_of(seen: Place, domain: tuple[Size, ...]) -> Iterator[Place]:
    """The conditions that this one is all of."""
    seen = _below(seen, domain)
    if not is_prim(seen.value, "logical_and"):
        yield seen
        return
    for each in _inputs(seen, domain):
        yield from _all_of(each, domain)


def _index(seen: Place, dim: int, domain: tuple[Size, ...]) -> Place | None:
    """i, where the condition is that the coordinate along `dim` is i."""
    if not is_prim(seen.value, "eq"):
        return None
    a, b = (_below(each, domain) for each in _inputs(seen, domain))
    for place, index in ((a, b), (b, a)):
        column, at = place
        if not isinstance(column, Coordinate) or at[column.dim] != axis(dim):
            continue
        steady = not any(axis(dim) in each.free_symbols for each in index.at)
        if steady and index.value.dtype == torch.int64:
            return index
    return None


class _Term(Picked):
    """The term that is not 0: read at the index, or at 0 where the index is none of the row's."""

    def __init__(self, index: Place, dim: int, domain: tuple[Size, ...], mine: Reduce) -> None:
        self.one = tuple(1 if d == dim else size for d, size in enumerate(domain))
        self.mine, self.keeps = mine, mine.keep
        asked = self.named(View(index.value, index.at, dtype=torch.int64, shape=self.one))
        nothing = self._number(0)
        self.inside = self._both(
            self._made("ge", torch.bool, asked, nothing),
            self._made("lt", torch.bool, asked, self._number(domain[dim])),
        )
        within = self._made("where", torch.int64, self.inside, asked, nothing)
        super().__init__(within, dim, domain[dim], mine)

    def in_place_of_sum(self, term: Place, tests: list[Place]) -> Value | None:
        """None where the term or one of the other tests is not so easily had."""
        picked = self.at(*term)
        if picked is None:
            return None
        dtype, here = self.mine.dtype, self.inside
        for test in tests:
            other = self.at(*test)
            if other is None:
                return None
            here = self._both(here, other)
        if picked.dtype != dtype:
            picked = self._made("cast", dtype, picked)
        zero = self.named(Constant(0.0 if dtype.is_floating_point else 0, dtype=dtype, shape=()))
        made = self._made("where", dtype, here, picked, zero)
        if self.keeps:
            return made
        at = list(identity(self.mine.shape))
        at.insert(self.dim, sympy.Integer(0))
        return self.named(View(made, tuple(at), dtype=dtype, shape=self.mine.shape))

    def loaded(self, value: Input | Result, at: Coordinates) -> Value | None:
        places: list[Size | Value] = []
        for place in at:
            if place != axis(self.dim) and axis(self.dim) in place.free_symbols:
                return None
            places.append(self.index if place == axis(self.dim) else place)
        return self.named(Gather(value, tuple(places), dtype=value.dtype, shape=self.one))

    def _number(self, number: Size) -> Value:
        return self.named(Constant(number, dtype=torch.int64, shape=()))

    def _both(self, a: Value, b: Value) -> Value:
        return self._made("logical_and", torch.bool, a, b)

    def _made(self, prim: str, dtype: torch.dtype, *inputs: Value) -> Value:
        return self.named(Pointwise(PRIMS[prim], inputs, dtype=dtype, shape=self.one))
