"""A cluster's values as the Body of a kernel, and how the kernel walks memory.

Every value is built at coordinates: expressions of the domain's axes i0, i1, …, and of symbols that
stand for terms where an index is itself computed. A load whose address is affine in the axes is an
operand with strides; any other is a Fetched, its place computed from index operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from megafuse.codegen.body import Applied, Fetched, Loaded, Reduced, Scalar, Term, Written
from megafuse.codegen.prims import PRIMS
from megafuse.graph.affine import Coordinates, affine, broadcast_at, collapsed, flat, mapped
from megafuse.graph.cluster import Cluster
from megafuse.graph.conditions import decided, is_outside, picks_of_pairs
from megafuse.graph.coordinates import within
from megafuse.graph.index_terms import IndexTerms
from megafuse.graph.ir import (
    Constant,
    Coordinate,
    Gather,
    Number,
    Pointwise,
    Reduce,
    Size,
    Value,
    View,
    axis,
)
from megafuse.graph.numbers import number_of
from megafuse.graph.pieces import Test
from megafuse.graph.plan import Address, Operand, Tensor

DTYPES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
}
Word = Size | float | Address


class BodyBuilder:
    """Builds the terms of one kernel, and collects its operands and words on the way."""

    def __init__(self, cluster: Cluster, tensors: Mapping[Value, Tensor]) -> None:
        self.cluster, self.tensors = cluster, tensors
        self.shape, self.rows = cluster.shape, cluster.rows
        self.axes = cluster.axes
        self.operands: list[Operand] = []
        self.dtypes: list[str] = []
        self.words: list[Word] = []
        self.fetches: list[tuple[Tensor, str]] = []
        self.tests: list[Test] = []  # what pieces of the domain might not have to ask
        self.picks: list[Test] = []  # the same, where both answers are computed, and one is taken
        self.index = IndexTerms(self)
        self._loads: dict[Any, Loaded] = {}
        self._slots: dict[Any, int] = {}
        self._built: dict[Any, Term] = {}
        self._known: dict[Any, Term] = {}

    # Operands and words

    def operand(self, operand: Operand, dtype: str, name: str | None) -> Loaded:
        key = (operand.buffer, operand.strides, operand.offset)
        if key not in self._loads:
            steady = bool(operand.strides) and operand.strides[-1] == 0
            self._loads[key] = Loaded(len(self.operands), steady, dtype=dtype, name=name)
            self.operands.append(operand)
            self.dtypes.append(dtype)
        return self._loads[key]

    def slot(self, word: Word, kind: str) -> int:
        key = (kind, word)
        if key not in self._slots:
            self._slots[key] = len(self.words)
            self.words.append(word)
        return self._slots[key]

    def one(self, term: Term) -> Term:
        """The term itself, or the same from before: equal conditions and indices are one."""
        key: tuple[Any, ...]
        if isinstance(term, Applied):
            key = (term.prim.name, term.dtype, term.args)
        elif isinstance(term, Written):
            key = (repr(term.value), term.dtype)
        else:
            assert isinstance(term, Scalar)
            key = (term.slot, term.dtype)
        return self._known.setdefault(key, term)

    def apply(self, prim: str, *args: Term, dtype: str) -> Term:
        return self.one(Applied(PRIMS[prim], args, dtype=dtype))

    def strides(self, steps: Sequence[Size]) -> tuple[Size, ...] | None:
        """A stride for each dimension of the kernel's index space, whose row is one dimension."""
        steps = [0 if n == 1 else step for step, n in zip(steps, self.shape, strict=True)]
        found = collapsed(steps, self.shape, self.rows)
        return None if found is None else tuple(found)

    def walk(self, address: Size) -> tuple[Size, tuple[Size, ...]] | None:
        """Offset and strides of an address, if these can say it."""
        found = affine(address, self.axes)
        if found is None or sympy.sympify(found[0]).free_symbols & self.index.computed.keys():
            return None
        if any(sympy.sympify(s).free_symbols & self.index.computed.keys() for s in found[1]):
            return None
        strides = self.strides(found[1])
        return None if strides is None else (found[0], strides)

    # Values

    def build(self, value: Value, at: Coordinates, mask: Term | None = None) -> Term:
        """The value at these coordinates; where the mask is false, memory is not read."""
        key = (value, at, mask)
        if key not in self._built:
            self._built[key] = self._build(value, at, mask)
        return self._built[key]

    def _build(self, value: Value, at: Coordinates, mask: Term | None) -> Term:
        if value in self.tensors and not self.is_own(value):
            return self.load(self.tensors[value], at, mask, value.name)
        if isinstance(value, (Constant, Number)):
            return self.number(value)
        if isinstance(value, Coordinate):
            return self.index.term(at[value.dim])
        if isinstance(value, View):
            return self.build(value.source, mapped(value.at, at, self.shape), mask)
        if isinstance(value, Gather):
            return self.gather(value, at, mask)
        if isinstance(value, Pointwise):
            return self.pointwise(value, at, mask)
        if isinstance(value, Reduce):
            return self.reduce(value, at, mask)
        raise AssertionError(f"{value.name} is not in memory")

    def is_own(self, value: Value) -> bool:
        return value in self.cluster.coordinates

    def number(self, value: Value) -> Term:
        dtype = DTYPES[value.dtype]
        if isinstance(value, Constant) and not isinstance(value.value, sympy.Basic):
            return self.one(Written(value.value, dtype=dtype))
        word = number_of(value)
        assert word is not None, f"{value.name} is no number of the call"
        kind = "Double" if value.dtype.is_floating_point else "Long"
        name = value.name if isinstance(value, Number) else None
        term = self.one(Scalar(self.slot(word, kind), dtype=kind, name=name))
        return term if kind == dtype else self.apply("cast", term, dtype=dtype)

    def pointwise(self, value: Pointwise, at: Coordinates, mask: Term | None) -> Term:
        dtype = DTYPES[value.dtype]
        word = number_of(value)
        if word is not None:
            slot = self.slot(word, "Double")
            return self.one(Scalar(slot, dtype="Double", name=value.origin.name))
        places = [mapped(broadcast_at(o.shape, value.shape), at, self.shape) for o in value.inputs]
        if value.prim.name == "where":
            chosen = decided(value.inputs[0], places[0], self.shape)
            if chosen is not None:
                which = 1 if chosen else 2
                return self.build(value.inputs[which], places[which], mask)
            picked = picks_of_pairs(value.inputs[0], places[0], self.shape)
            if picked is not None:
                self.picks.append(Test(picked, 1))
        args = [self.build(o, place, mask) for o, place in zip(value.inputs, places, strict=True)]
        name, line = value.origin.name, value.origin.text
        return self.one(Applied(value.prim, tuple(args), dtype=dtype, name=name, line=line))

    def reduce(self, value: Reduce, at: Coordinates, mask: Term | None) -> Term:
        if not value.dims:
            return self.build(value.source, at, mask)
        assert at == self.cluster.coordinates[value], f"{value.name} is wanted of another row"
        key = (value, None, None)
        if key not in self._built:
            arg = self.build(value.source, self.cluster.inner[value])
            self._built[key] = Reduced(
                value.kind,
                arg,
                dtype=DTYPES[value.dtype],
                name=value.origin.name,
                line=value.origin.text,
            )
        return self._built[key]

    # Loads

    def load(self, tensor: Tensor, at: Coordinates, mask: Term | None, name: str) -> Term:
        dtype = DTYPES[tensor.buffer.dtype]
        found = self.walk(flat(at, tensor.strides, tensor.offset)) if mask is None else None
        if found is not None:
            return self.operand(Operand(tensor.buffer, found[1], found[0]), dtype, name)
        return self.fetch(tensor, at, mask, 0.0, name)

    def fetch(
        self, tensor: Tensor, at: Coordinates, mask: Term | None, otherwise: float, name: str
    ) -> Fetched:
        """The affine part of the address as one index, the other coordinates one by one."""
        places, strides = [], []
        start = sympy.sympify(0)
        for place, stride in zip(at, tensor.strides, strict=True):
            if self.walk(place * stride) is not None:
                start += place * stride
            elif place != 0:
                self.tests.append(Test(place))
                places.append(self.index.term(place))
                strides.append(self.slot(stride, "Long"))
        walk = self.walk(start)
        offset: Size = tensor.offset
        if walk is None:
            places.append(self.index.term(start))
            strides.append(self.slot(1, "Long"))
        else:
            offset = offset + walk[0]
            if any(stride != 0 for stride in walk[1]):
                places.append(self.index.walked(0, walk[1]))
                strides.append(self.slot(1, "Long"))
        dtype = DTYPES[tensor.buffer.dtype]
        self.fetches.append((tensor, dtype))
        return Fetched(
            self.slot(Address(tensor.buffer, offset), "Address"),
            tuple(places),
            tuple(strides),
            mask,
            otherwise,
            self.index.run(at) if mask is None else None,
            dtype=dtype,
            name=name,
        )

    def gather(self, value: Gather, at: Coordinates, mask: Term | None) -> Term:
        """source[at]: with a mask of its own, nothing is read where a coordinate is outside."""
        own = {axis(dim): place for dim, place in enumerate(at)}
        places = []
        for place in value.at:
            if isinstance(place, Value):
                where = mapped(broadcast_at(place.shape, value.shape), at, self.shape)
                places.append(self.index.symbol(self.build(place, where, mask)))
            else:
                places.append(sympy.sympify(place).xreplace(own))
        source = tuple(places)
        if value.otherwise is None:
            return self.build(value.source, source, mask)
        if is_outside(source, value.source.shape, self.shape):
            return self.otherwise(value)
        inside = self.inside(value, source)
        both = inside if mask is None else mask
        if inside is not None and mask is not None:
            both = self.apply("logical_and", mask, inside, dtype="Bool")
        if both is None:
            return self.build(value.source, source, None)
        return self.masked(value, source, both)

    def masked(self, value: Gather, source: Coordinates, inside: Term) -> Term:
        assert value.otherwise is not None
        base, places = value.source, source
        while isinstance(base, View):
            places, base = mapped(base.at, places, self.shape), base.source
        if base in self.tensors and not self.is_own(base):
            return self.fetch(self.tensors[base], places, inside, value.otherwise, base.name)
        made, other = self.build(base, places, inside), self.otherwise(value)
        return self.apply("where", inside, made, other, dtype=other.dtype)

    def otherwise(self, value: Gather) -> Term:
        """What a masked load gives where it reads nothing."""
        assert value.otherwise is not None
        number: float | int | bool = value.otherwise
        if not value.dtype.is_floating_point:
            number = bool(number) if value.dtype == torch.bool else int(number)
        return self.one(Written(number, dtype=DTYPES[value.dtype]))

    def inside(self, value: Gather, places: Coordinates) -> Term | None:
        """Whether all coordinates are in bounds; None if that is proven."""
        found: Term | None = None
        for place, size in zip(places, value.source.shape, strict=True):
            for test in self._tests(place, size):
                found = (
                    test if found is None else self.apply("logical_and", found, test, dtype="Bool")
                )
        return found

    def _tests(self, place: sympy.Expr, size: Size) -> list[Term]:
        if within(place, self.shape, size):
            return []
        self.tests.append(Test(place, size))
        walk = affine(place, self.axes)
        start = sympy.sympify(0 if walk is None else walk[0])
        term, found = self.index.term(place - start), []
        if not self._is_proven(place):
            found.append(self.apply("ge", term, self.index.term(-start), dtype="Bool"))
        if not self._is_proven(size - 1 - place):
            found.append(self.apply("lt", term, self.index.term(size - start), dtype="Bool"))
        return found

    def _is_proven(self, expr: sympy.Expr) -> bool:
        """Whether an expression of the axes is never negative, by its smallest value."""
        found = affine(expr, self.axes)
        if found is None:
            return False
        least = sympy.sympify(found[0])
        for step, size in zip(found[1], self.shape, strict=True):
            step = sympy.sympify(step)
            if step.is_negative:
                least += step * (size - 1)
            elif not step.is_nonnegative:
                return False
        return within(least, (), least + 1)
