"""Arithmetic on the coordinates of Views: how a reshape reads its source, and what can go.

A coordinate along dim k runs from 0 to shape[k] − 1, and sizes are at least 1 wherever an element
is read at all; with that (i0·n + i1)//n is i0, where i1 < n.

Such proofs take milliseconds each, and the layers of a model ask for the same ones: what was found
is remembered.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from megafuse.graph.ir import Size, axis

Bounds = tuple[sympy.Expr, sympy.Expr]
Shape = tuple[Size, ...]

remembered = functools.lru_cache(maxsize=1 << 14)


def identity(shape: Sequence[Size]) -> tuple[sympy.Expr, ...]:
    return tuple(axis(dim) for dim in range(len(shape)))


def is_known(size: Size) -> bool:
    """Whether it is a number, whatever the call."""
    return isinstance(size, int) or bool(size.is_Integer)


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal whatever the symbols are."""
    return a == b or _never_differ(a, b)


@remembered
def _never_differ(a: Size, b: Size) -> bool:
    return bool(sympy.expand(a - b) == 0)


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def reshape(old: Sequence[Size], new: Sequence[Size]) -> tuple[Size, ...]:
    """Where an element of `new` lies in `old`, in the smallest groups of dimensions that match."""
    return _reshape(tuple(old), tuple(new))


@remembered
def _reshape(old: Shape, new: Shape) -> tuple[Size, ...]:
    if 0 in old or 0 in new:
        return (0,) * len(old)  # nothing is read
    at: list[Size] = []
    start = 0
    for olds, news in _groups(old, new):
        axes = [axis(start + k) for k in range(len(news))]
        flat = sum(
            (i * step for i, step in zip(axes, _strides(news), strict=True)), sympy.Integer(0)
        )
        for k, step in enumerate(_strides(olds)):
            place = FloorDiv(flat, step) if step != 1 else flat
            at.append(Mod(place, olds[k]) if k else place)
        start += len(news)
    return simplified(at, new)


def _groups(
    old: Sequence[Size], new: Sequence[Size]
) -> list[tuple[Sequence[Size], Sequence[Size]]]:
    found = []
    i = j = 0
    while i < len(old) or j < len(new):
        end = _shortest(old[i:], new[j:])
        found.append((old[i : i + end[0]], new[j : j + end[1]]))
        i, j = i + end[0], j + end[1]
    return found


def _shortest(old: Sequence[Size], new: Sequence[Size]) -> tuple[int, int]:
    if old and new and same(old[0], new[0]):
        return 1, 1
    if old and old[0] == 1:
        return 1, 0
    if new and new[0] == 1:
        return 0, 1
    pairs = [(p, q) for p in range(1, len(old) + 1) for q in range(1, len(new) + 1)]
    for p, q in sorted(pairs, key=sum):
        if same(_exact(old[:p]), _exact(new[:q])):
            return p, q
    return len(old), len(new)


def _exact(sizes: Sequence[Size]) -> sympy.Expr:
    """The product. A division in it is exact: torch has checked that the elements are as many."""
    product = sympy.sympify(sympy.prod(sizes))
    return product.replace(FloorDiv, lambda top, by: top / by)


def _strides(sizes: Sequence[Size]) -> list[Size]:
    return [sympy.prod(sizes[k + 1 :]) for k in range(len(sizes))]


def simplified(at: Sequence[Size], shape: Sequence[Size]) -> tuple[Size, ...]:
    """The same coordinates, without divisions that these axes' bounds make needless."""
    domain = tuple(shape)
    return tuple(_simplified_in(domain, sympy.sympify(a)) for a in at)


@remembered
def _simplified_in(shape: Shape, expr: sympy.Expr) -> sympy.Expr:
    sizes = _sizes(shape)
    alone = {i: sympy.Integer(0) for i, size in sizes.items() if size == 1}
    return _simplified(expr.xreplace(alone), sizes)


@remembered
def _sizes(shape: Shape) -> Mapping[sympy.Symbol, sympy.Expr]:
    return {axis(dim): sympy.sympify(size) for dim, size in enumerate(shape)}


def _simplified(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    if not expr.args:
        return expr
    args = [_simplified(arg, sizes) for arg in expr.args]
    if isinstance(expr, sympy.Add):
        return _rejoined(sympy.Add(*args))
    if isinstance(expr, (FloorDiv, Mod, PythonMod)):
        whole, rest = _divided(args[0], args[1])
        bounds = _bounds(rest, sizes)
        if bounds is not None and _not_negative(bounds[0]):
            if _not_negative(args[1] - 1 - bounds[1]):
                return whole if isinstance(expr, FloorDiv) else rest
            times, rest, left, by = _without_factor(rest, args[1])
            if not isinstance(expr, FloorDiv):
                return times * Mod(rest, by) + left
            return whole + FloorDiv(rest, by)
    return expr.func(*args) if args != list(expr.args) else expr


def _rejoined(expr: sympy.Expr) -> sympy.Expr:
    """n·(i//n) + i%n is i: what splitting a dimension and merging it again gives."""
    terms = list(sympy.Add.make_args(sympy.expand(expr)))
    for term in list(terms):
        for rest in term.atoms(Mod, PythonMod):
            factor = term / rest
            whole = sympy.expand(factor * rest.args[1] * FloorDiv(*rest.args))
            if not factor.has(rest) and whole in terms and term in terms:
                terms.remove(term)
                terms.remove(whole)
                terms.append(factor * rest.args[0])
    return sympy.Add(*terms)


def _divided(top: sympy.Expr, by: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """top = whole · by + rest, where the terms that `by` divides go into `whole`."""
    whole = rest = sympy.Integer(0)
    for term in sympy.Add.make_args(sympy.expand(top)):
        quotient = sympy.cancel(term / by) if not term.has(FloorDiv, Mod, PythonMod) else term / by
        if sympy.denom(quotient) == 1 and quotient.is_integer is not False:
            whole += quotient
        else:
            rest += term
    return whole, rest


def _without_factor(
    top: sympy.Expr, by: sympy.Expr
) -> tuple[sympy.Integer, sympy.Expr, sympy.Integer, sympy.Expr]:
    """top = times · rest + left and by = times · the last, so that (2·i + 1)//(2·s) is i//s: what
    is left is less than `times`."""
    left, terms = sympy.expand(top).as_coeff_Add()
    factors = [term.as_coeff_Mul()[0] for term in (by, *sympy.Add.make_args(terms))]
    if not left.is_Integer or not all(factor.is_Integer for factor in factors):
        return sympy.S.One, top, sympy.S.Zero, by
    times = sympy.Integer(sympy.igcd(*factors))
    return times, sympy.expand((terms + left - left % times) / times), left % times, by / times


def _bounds(expr: sympy.Expr, sizes: Mapping[sympy.Symbol, sympy.Expr]) -> Bounds | None:
    """The smallest and the largest that it can be."""
    if expr in sizes:
        return sympy.Integer(0), sizes[expr] - 1
    if not expr.free_symbols & set(sizes):
        return expr, expr
    parts = [_bounds(arg, sizes) for arg in expr.args]
    if any(part is None for part in parts):
        return None
    lows, highs = [p[0] for p in parts if p], [p[1] for p in parts if p]
    if isinstance(expr, sympy.Add):
        return sum(lows, sympy.Integer(0)), sum(highs, sympy.Integer(0))
    if isinstance(expr, sympy.Mul):
        if expr.args[0].is_negative:
            opposite = _bounds(-expr, sizes)
            return None if opposite is None else (-opposite[1], -opposite[0])
        return (sympy.prod(lows), sympy.prod(highs)) if all(map(_not_negative, lows)) else None
    if isinstance(expr, FloorDiv) and _not_negative(lows[0]):
        return sympy.Integer(0), FloorDiv(highs[0], expr.args[1])
    if isinstance(expr, (Mod, PythonMod)):
        return sympy.Integer(0), expr.args[1] - 1
    return None


@remembered
def _not_negative(expr: Size) -> bool:
    """Proven, where every size is at least 1."""
    expr = sympy.sympify(expr)
    shifted = {
        symbol: sympy.Dummy(integer=True, nonnegative=True) + 1
        for symbol in expr.free_symbols
        if symbol.is_positive
    }
    return bool(sympy.expand(expr.xreplace(shifted)).is_nonnegative)


def never_negative(at: Size, shape: Sequence[Size]) -> bool:
    """Whether that is proven for every element of the shape."""
    return _never_negative(at, tuple(shape))


@remembered
def _never_negative(at: Size, shape: Shape) -> bool:
    bounds = _bounds(sympy.expand(at), _sizes(shape))
    return bounds is not None and _not_negative(bounds[0])


def within(at: Size, shape: Sequence[Size], size: Size) -> bool:
    """Whether a coordinate is proven to be in 0 … size − 1 for every element of the shape."""
    return _within(at, tuple(shape), size)


@remembered
def _within(at: Size, shape: Shape, size: Size) -> bool:
    bounds = _bounds(sympy.sympify(at), _sizes(shape))
    if bounds is None:
        return False
    return _not_negative(bounds[0]) and _not_negative(size - 1 - bounds[1])
