"""What a captured graph relies on: the symbols of its arguments, and guards over these."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import CeilToInt, FloorDiv, IntTrueDiv

from megafuse.graph.multiples import Symbols, told


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
    confined: list[sympy.Basic] = []
    for symbol, ours in symbols.items():
        bounds = shapes.var_to_range.get(symbol)
        if bounds is not None and symbol.is_integer and bounds.lower.is_Integer:
            name, times = told(ours) or (ours, 1)
            least[name] = sympy.ceiling(bounds.lower / times)
            # 2·s0 from 4 to 5: torch broadcasts s0 − 1 since it is 1.
            if bounds.upper.is_Integer and bounds.upper // times == least[name]:
                confined.append(sympy.Eq(name, least[name], evaluate=False))
    found = [sympy.Ge(symbol, low, evaluate=False) for symbol, low in least.items()] + confined
    equal = equalities(found)
    for guard in shapes.guards:
        expr = shapes.replace(guard.expr).xreplace(symbols)
        if expr not in found and not _implied(simpler(expr, equal), least):
            found.append(expr)
            if isinstance(expr, sympy.Eq):
                equal = equalities(found)
    return tuple(found)


def equal_sizes(stand_ins: Sequence[Any], symbols: Symbols) -> tuple[sympy.Basic, ...]:
    """The sizes of these that torch has found to be equal."""
    symbolic = (size for size in _sizes(stand_ins) if isinstance(size, torch.SymInt))
    shapes: ShapeEnv | None = next((size.node.shape_env for size in symbolic), None)
    if shapes is None:
        return ()
    guards = (shapes.replace(guard.expr) for guard in shapes.guards)
    known = [g for g in guards if isinstance(g, sympy.Eq) and g.free_symbols <= symbols.keys()]
    return tuple(dict.fromkeys(guard.xreplace(symbols) for guard in known))


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
_STEPS = 4  # that replacements are followed


def equalities(guards: Sequence[sympy.Basic], keep: Collection[sympy.Basic] = ()) -> Equal:
    """What sizes may be replaced with where the guards hold: s1//4 with s3 if these are equal, and
    then s1 with 4·s3. Shapes that torch found equal look equal then. Of two products, the one of
    sizes to `keep` stays: logits of s0·s1 rows are a view of [s0, s1], those of s3·s4 are not."""
    equal: Equal = {}
    known = [guard for guard in guards if isinstance(guard, sympy.Eq)]
    # s2 = 4·s3 before s0·s1·s2 = 4·s0·s1·s3, which then says nothing more.
    known.sort(key=lambda guard: len(guard.free_symbols))
    for guard in known * 2:  # the second time with what the first has found
        one, other = (simpler(side, equal) for side in guard.args)
        if one == other:
            continue
        if one.is_Integer:
            one, other = other, one  # a number replaces whatever is equal to it
        elif not other.is_Integer:
            if one.is_Symbol:
                one, other = other, one  # the simple side replaces the other
            if one.is_Symbol or (other.is_Symbol and not one.has(FloorDiv)):
                one, other = other, one  # but a symbol is replaced with what it is made of
        if other.has(one):
            one, other = other, one  # s1 − s1//2 with s1//2, Min(s0, s1) with s0
        if one.is_Mul and other.is_Mul and one.free_symbols <= {*keep}:
            one, other = other, one
        one, other = _for_the_division(one, other)
        if not other.has(one) and not one.is_Integer:
            more = {**equal, one: other}
            equal = equal if _circular(more) else more
    return equal


def _for_the_division(one: sympy.Expr, other: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Where s1 − s1//2 is 1, s1//2 is s1 − 1: halves of 1 and s1//2 are s1 together."""
    terms = one.args if one.is_Add and other.is_Integer else ()
    divisions = [t for t in terms if isinstance(t, FloorDiv) or isinstance(-t, FloorDiv)]
    if len(divisions) != 1:
        return one, other
    (term,) = divisions
    rest = other - (one - term)
    return (term, rest) if isinstance(term, FloorDiv) else (-term, -rest)


def checked(
    guards: Sequence[sympy.Basic], numbers: Collection[sympy.Symbol]
) -> tuple[sympy.Basic, ...]:
    """The guards over the symbols that the lowered arguments still show. Of a size that was
    replaced they show what it is equal to, and the host holds that against the call's. `numbers`
    are shown as they were."""
    known = equalities(guards).items()
    equal = {one: other for one, other in known if one.is_Symbol and one not in numbers}
    simple = (simpler(guard, equal) for guard in guards)
    return tuple(guard for guard in simple if guard is not sympy.true)


def _circular(equal: Equal) -> bool:
    """Whether a replacement leads back to what it replaces, by way of others."""
    for one, expr in equal.items():
        for _ in range(_STEPS):
            expr, before = expr.xreplace(equal), expr
            if expr == before:
                break
            if expr.has(one):
                return True
    return False


def _is_rounded_up(expr: sympy.Basic) -> bool:
    return isinstance(expr, CeilToInt) and isinstance(expr.args[0], IntTrueDiv)


def _rounded_up(expr: sympy.Basic) -> sympy.Basic:
    """ceil(n / m) of whole numbers, by whole numbers: sizes that attention pads are such."""
    n, m = expr.args[0].args
    return FloorDiv(n + m - 1, m)


def simpler(expr: sympy.Expr, equal: Equal) -> sympy.Expr:
    """The same size, with what is known to be equal replaced."""
    if expr.has(CeilToInt):
        expr = expr.replace(_is_rounded_up, _rounded_up)
    for _ in range(_STEPS):  # one may lead to the next
        expr, before = expr.xreplace(equal), expr
        if expr == before:
            break
    return expr
