"""What a value's elements are, written in its coordinates: for masks, which models compute.

    torch.arange(n)[None, :] <= torch.arange(n)[:, None]        i1 <= i0

`elements(value)` is an expression of `axis(0)`, `axis(1)`, … and sizes, or None where that is not
proven. Whole numbers and conditions only; every rule below holds for each element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import sympy
import torch

from megafuse.graph.affine import broadcast_at
from megafuse.graph.coordinates import identity, within
from megafuse.graph.ir import (
    Constant,
    Coordinate,
    Extern,
    Gather,
    Number,
    Pointwise,
    Result,
    Size,
    Value,
    View,
    axis,
)

Element = Any  # a sympy expression, or a condition
aten = torch.ops.aten
_CONDITIONS = (  # a symbol is a Boolean to sympy
    sympy.logic.boolalg.BooleanAtom,
    sympy.logic.boolalg.BooleanFunction,
    sympy.core.relational.Relational,
)


def elements(value: Value) -> Element | None:
    """Of the whole value."""
    return _Space(value.shape).element(value, identity(value.shape))


def seen(mask: Value) -> Literal["all", "causal"] | None:
    """What a mask of queries by keys lets them see: everything, or the keys that come no later than
    the query. None where neither is proven."""
    if mask.dtype != torch.bool or len(mask.shape) < 2:
        return None
    query, key = axis(len(mask.shape) - 2), axis(len(mask.shape) - 1)
    found = elements(mask)
    if found == sympy.true:
        return "all"
    return "causal" if found in (sympy.Le(key, query), sympy.Ge(query, key)) else None


class _Space:
    """Coordinates that run over a shape; `at` below are expressions of these."""

    def __init__(self, shape: Sequence[Size]) -> None:
        self.shape = tuple(shape)

    def element(self, value: Value, at: Sequence[Size]) -> Element | None:
        if isinstance(value, Constant):
            return _sympified(value.value)
        if isinstance(value, Number):
            return value.symbol
        if isinstance(value, Coordinate):
            return sympy.sympify(at[value.dim])
        if isinstance(value, (View, Gather)):
            return self._seen(value, at)
        if isinstance(value, Pointwise):
            return self._computed(value, at)
        if isinstance(value, Result):
            return _of_library(value.extern)
        return None

    def _seen(self, value: View | Gather, at: Sequence[Size]) -> Element | None:
        if any(isinstance(a, Value) for a in value.at):
            return None
        places = {axis(dim): sympy.sympify(place) for dim, place in enumerate(at)}
        there = [sympy.expand(sympy.sympify(a).xreplace(places)) for a in value.at]
        if isinstance(value, Gather):  # elsewhere it gives something else
            sizes = zip(there, value.source.shape, strict=True)
            if not all(within(place, self.shape, size) for place, size in sizes):
                return None
        return self.element(value.source, there)

    def _computed(self, value: Pointwise, at: Sequence[Size]) -> Element | None:
        if value.prim.name == "where":
            return self._chosen(value, at)
        operands = [self._operand(value, x, at) for x in value.inputs]
        if any(x is None for x in operands) or value.dtype.is_floating_point:
            return None
        if value.prim.name == "cast":
            return _cast(operands[0], value.dtype)
        rule = _RULES.get(value.prim.name)
        return None if rule is None else rule(*operands)

    def _operand(self, value: Pointwise, operand: Value, at: Sequence[Size]) -> Element | None:
        places = {axis(dim): sympy.sympify(place) for dim, place in enumerate(at)}
        there = [a.xreplace(places) for a in broadcast_at(operand.shape, value.shape)]
        return self.element(operand, there)

    def _chosen(self, value: Pointwise, at: Sequence[Size]) -> Element | None:
        """where(c, a, b); where c is `i >= 1`, and at i = 0 b is what a would go on to be, a."""
        condition = self._operand(value, value.inputs[0], at)
        if condition in (sympy.true, sympy.false):
            return self._operand(value, value.inputs[1 if condition == sympy.true else 2], at)
        for dim in range(len(self.shape)):
            i = axis(dim)
            if condition != sympy.Ge(i, 1):
                continue
            rest = _Space((*self.shape[:dim], self.shape[dim] - 1, *self.shape[dim + 1 :]))
            after = rest._operand(value, value.inputs[1], _put(at, i, i + 1))
            first = self._operand(value, value.inputs[2], _put(at, i, sympy.Integer(0)))
            if after is None or first is None:
                return None
            whole = after.xreplace({i: i - 1})
            return whole if _are_equal(whole.xreplace({i: sympy.Integer(0)}), first) else None
        return None


def _put(at: Sequence[Size], symbol: sympy.Symbol, to: sympy.Expr) -> list[sympy.Expr]:
    return [sympy.sympify(a).xreplace({symbol: to}) for a in at]


def _are_equal(a: Element, b: Element) -> bool:
    if isinstance(a, _CONDITIONS) or isinstance(b, _CONDITIONS):
        return bool(a == b)
    return bool(sympy.expand(a - b) == 0)


def _of_library(extern: Extern) -> Element | None:
    """What an operation gives that is handed one number everywhere: a running sum of zeros, and a
    choice of elements that are all the same."""
    if extern.target not in (aten.cumsum.default, aten.index.Tensor):
        return None
    everywhere = elements(extern.args[0])
    if extern.target is aten.cumsum.default:
        return sympy.Integer(0) if everywhere in (sympy.false, sympy.Integer(0)) else None
    is_one = everywhere in (sympy.true, sympy.false) or getattr(everywhere, "is_Integer", False)
    return everywhere if is_one else None


def _sympified(number: Any) -> Element | None:
    if isinstance(number, bool):
        return sympy.true if number else sympy.false
    return sympy.sympify(number) if isinstance(number, (int, sympy.Expr)) else None


def _cast(x: Element, dtype: torch.dtype) -> Element | None:
    is_condition = isinstance(x, _CONDITIONS)
    if dtype == torch.bool or not is_condition:
        return x if is_condition == (dtype == torch.bool) else None
    if x in (sympy.true, sympy.false):
        return sympy.Integer(1 if x == sympy.true else 0)
    return None


def _compared(relation: Any) -> Callable[[Element, Element], Element | None]:
    """The difference is compared with 0, so that what both sides have cancels."""

    def compare(a: Element, b: Element) -> Element | None:
        if any(isinstance(x, _CONDITIONS) for x in (a, b)):
            return None
        difference = sympy.expand(a - b)
        return relation(difference, 0) if difference.is_number else relation(a, b)

    return compare


_RULES: dict[str, Callable[..., Element | None]] = {
    "add": lambda a, b: sympy.expand(a + b),
    "sub": lambda a, b: sympy.expand(a - b),
    "mul": lambda a, b: sympy.expand(a * b),
    "neg": lambda a: -a,
    "eq": _compared(sympy.Eq),
    "ne": _compared(sympy.Ne),
    "lt": _compared(sympy.Lt),
    "le": _compared(sympy.Le),
    "gt": _compared(sympy.Gt),
    "ge": _compared(sympy.Ge),
    "logical_and": sympy.And,
    "logical_or": sympy.Or,
    "logical_not": sympy.Not,
}
