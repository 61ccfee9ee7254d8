"""What a captured graph relies on: the symbols of its arguments, and guards over these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv

Symbols = dict[sympy.Symbol, sympy.Symbol]


def symbols_of(stand_ins: Sequence[Any]) -> Symbols:
    """Ours for each symbol of the arguments' sizes and strides: s0, s1, …, and z0 for floats."""
    ours: Symbols = {}
    for size in _sizes(stand_ins):
        node = getattr(size, "node", None)
        if node is None:
            continue
        for symbol in sorted(node.expr.free_symbols, key=str):
            if symbol not in ours:
                letter = "z" if isinstance(size, torch.SymFloat) else "s"
                number = sum(str(known)[0] == letter for known in ours.values())
                ours[symbol] = sympy.Symbol(f"{letter}{number}", **symbol._assumptions_orig)
    return ours


def _sizes(stand_ins: Sequence[Any]) -> Iterator[Any]:
    tensors = [each for each in stand_ins if isinstance(each, torch.Tensor)]
    for each in stand_ins:
        if isinstance(each, torch.Tensor):
            yield from each.shape
        else:
            yield each
    for tensor in tensors:
        yield from tensor.stride()
        yield tensor.storage_offset()


def guards_of(shapes: ShapeEnv, symbols: Symbols) -> tuple[sympy.Basic, ...]:
    """What the trace relied on, without what the stand-ins show and what other guards imply."""
    least: dict[sympy.Symbol, sympy.Expr] = {}
    for symbol, ours in symbols.items():
        bounds = shapes.var_to_range.get(symbol)
        if bounds is not None and symbol.is_integer and bounds.lower.is_Integer:
            least[ours] = bounds.lower
    found = [sympy.Ge(symbol, low, evaluate=False) for symbol, low in least.items()]
    equal: Equal = {}
    for guard in shapes.guards:
        expr = shapes.replace(guard.expr).xreplace(symbols)
        if expr not in found and not _implied(simpler(expr, equal), least):
            found.append(expr)
            if isinstance(expr, sympy.Eq):
                equal = equalities(found)
    return tuple(found)


def _implied(guard: sympy.Basic, least: dict[sympy.Symbol, sympy.Expr]) -> bool:
    """Whether it is seen to hold wherever each symbol is at least this."""
    if not isinstance(guard, sympy.core.relational.Relational):
        return bool(guard is sympy.true)
    if guard.has(FloorDiv):
        return False  # sympy knows nothing about these, and takes long to say so
    more = {s: sympy.Dummy(integer=True, nonnegative=True) + low for s, low in least.items()}
    over = sympy.expand((guard.lhs - guard.rhs).xreplace(more))
    return bool(
        {
            ">=": over.is_nonnegative,
            "<=": over.is_nonpositive,
            ">": over.is_positive,
            "<": over.is_negative,
            "!=": over.is_positive or over.is_negative,
        }.get(guard.rel_op)
    )


Equal = dict[sympy.Expr, sympy.Expr]


def equalities(guards: Sequence[sympy.Basic]) -> Equal:
    """What sizes may be replaced with where the guards hold: s1//4 with s3 if these are equal, and
    then s1 with 4·s3. Shapes that torch found equal look equal then."""
    equal: Equal = {}
    known = [guard for guard in guards if isinstance(guard, sympy.Eq)]
    for guard in known * 2:  # the second time with what the first has found
        one, other = (simpler(side, equal) for side in guard.args)
        if one == other:
            continue
        if one.is_Symbol or one.is_Integer:
            one, other = other, one  # the simple side replaces the other
        if one.is_Symbol or (other.is_Symbol and not one.has(FloorDiv)):
            one, other = other, one  # but a symbol is replaced with what it is made of
        if not other.has(one) and not one.is_Integer:
            equal[one] = other
        elif one.has(FloorDiv):
            equal |= _halves(one, other)
    return equal


def _halves(half: sympy.Expr, rest: sympy.Expr) -> Equal:
    """n/2 (rounded up) and n − n/2 are equal, as where a size is cut in two: the rest is a half as
    well, and two of them are the whole."""
    difference = sympy.expand(rest - half)
    count = -difference.coeff(half)
    whole = sympy.expand(difference + count * half)
    if count.is_Integer and count > 1 and not whole.has(half):
        return {rest: half, count * half: whole}
    return {}


def simpler(expr: sympy.Expr, equal: Equal) -> sympy.Expr:
    """The same size, with what is known to be equal replaced."""
    for _ in range(4):  # one may lead to the next
        expr, before = expr.xreplace(equal), expr
        if expr == before:
            break
    return expr
