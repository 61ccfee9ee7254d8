"""Coordinates as terms: index operands where they are affine in the axes, else made of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import FloorDiv

from megafuse.codegen.body import Loaded, Scalar, Term, Written
from megafuse.graph.ir import Size
from megafuse.graph.plan import Operand

if TYPE_CHECKING:
    from megafuse.graph.body_builder import BodyBuilder

_PRIMS = {
    "Add": "add",
    "Mul": "mul",
    "FloorDiv": "floor_div",
    "CleanDiv": "floor_div",
    "Mod": "mod",
    "PythonMod": "mod",
    "Max": "maximum",
    "Min": "minimum",
}
_COMPARES = {
    "Equality": "eq",
    "Unequality": "ne",
    "GreaterThan": "ge",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "StrictLessThan": "lt",
}


class IndexTerms:
    """Int64 arithmetic of one kernel. `computed` has the term that each symbol stands for."""

    def __init__(self, builder: BodyBuilder) -> None:
        self.builder = builder
        self.computed: dict[sympy.Symbol, Term] = {}
        self._symbols: dict[Term, sympy.Symbol] = {}
        self._terms: dict[sympy.Expr, Term] = {}

    def symbol(self, term: Term) -> sympy.Symbol:
        """What expressions call a computed index."""
        if term not in self._symbols:
            made = sympy.Symbol(f"t{len(self._symbols)}", integer=True)
            self._symbols[term], self.computed[made] = made, term
        return self._symbols[term]

    def term(self, expr: Size) -> Term:
        expr = sympy.sympify(expr)
        if expr not in self._terms:
            self._terms[expr] = self._term(expr)
        return self._terms[expr]

    def walked(self, start: Size, strides: tuple[Size, ...]) -> Loaded:
        """An operand without memory."""
        return self.builder.operand(Operand(None, strides, start), "Long", None)

    def _term(self, expr: sympy.Expr) -> Term:
        if expr.is_Integer:
            return self.builder.one(Written(int(expr), dtype="Long"))
        if expr in self.computed:
            return self._as_long(self.computed[expr])
        if not expr.free_symbols & {*self.builder.axes, *self.computed}:
            slot = self.builder.slot(expr, "Long")
            return self.builder.one(Scalar(slot, dtype="Long"))
        walk = self.builder.walk(expr)
        if walk is not None:
            return self.walked(*walk)
        if expr in self.builder.axes:
            return self._axis_of_row(self.builder.axes.index(expr))
        return self._applied(expr)

    def run(self, at: Sequence[sympy.Expr]) -> tuple[Loaded, Term] | None:
        """(place, length): at these coordinates the row is in runs of so many elements, since its
        axis is divided by that wherever it stands."""
        b = self.builder
        outer = len(b.shape) - b.rows
        row = set(b.axes[outer:])
        if b.rows == 1:
            found = {d for e in at for d in e.atoms(FloorDiv) if d.args[0] == b.axes[outer]}
        else:
            found = {b.axes[outer]} if b.rows else set()
        rest = [e.xreplace(dict.fromkeys(found, sympy.Integer(0))) for e in at]
        known = row | self.computed.keys()
        if len(found) != 1 or any(e.free_symbols & known for e in rest):
            return None
        length = found.pop().args[1] if b.rows == 1 else sympy.prod(b.shape[outer + 1 :])
        length = sympy.sympify(length)  # sizes may be known
        if length == 1 or length.free_symbols & {*b.axes, *self.computed}:
            return None
        return self.walked(0, (*(0,) * outer, 1)), self.term(length)

    def _axis_of_row(self, dim: int) -> Term:
        """A dimension of the row, from the place in the row that all of them make."""
        b = self.builder
        outer = len(b.shape) - b.rows
        walk = (*(0,) * outer, 1)
        place: Term = self.walked(0, walk)
        step = sympy.prod(b.shape[dim + 1 :])
        if step != 1:
            place = self._prim("floor_div", place, self.term(step))
        if dim > outer:
            place = self._prim("mod", place, self.term(sympy.sympify(b.shape[dim])))
        return place

    def _applied(self, expr: sympy.Expr) -> Term:
        name = type(expr).__name__
        if isinstance(expr, sympy.Piecewise):
            result: Term | None = None
            for branch, condition in reversed(expr.args):
                made = self.term(branch)
                if result is None or condition == sympy.true:
                    result = made
                else:
                    test = self._compared(condition)
                    result = self._prim("where", test, made, result)
            assert result is not None
            return result
        if name not in _PRIMS:
            raise NotImplementedError(f"a coordinate has {name}: {expr}")
        args = self._grouped(expr) if name == "Add" else list(expr.args)
        result = self.term(args[0])
        for arg in args[1:]:
            result = self._prim(_PRIMS[name], result, self.term(arg))
        return result

    def _grouped(self, expr: sympy.Expr) -> Sequence[sympy.Expr]:
        """The terms of a sum: those that are affine as one."""
        walks = [arg for arg in expr.args if self.builder.walk(arg) is not None]
        rest = [arg for arg in expr.args if arg not in walks]
        return [sympy.Add(*walks), *rest] if walks else rest

    def _compared(self, condition: sympy.Basic) -> Term:
        prim = _COMPARES[type(condition).__name__]
        left, right = (self.term(arg) for arg in condition.args)
        return self.builder.apply(prim, left, right, dtype="Bool")

    def _prim(self, name: str, *args: Term) -> Term:
        return self.builder.apply(name, *args, dtype="Long")

    def _as_long(self, term: Term) -> Term:
        return term if term.dtype == "Long" else self._prim("cast", term)
