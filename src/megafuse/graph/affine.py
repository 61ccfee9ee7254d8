"""Where an element lies in memory: coordinates times strides, as a sum over a kernel's axes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from megafuse.graph.coordinates import Shape, remembered, same, simplified
from megafuse.graph.ir import Size, axis

Coordinates = tuple[sympy.Expr, ...]


def affine(expr: Size, axes: Sequence[sympy.Symbol]) -> tuple[Size, list[Size]] | None:
    """(start, a step for each axis) of expr = start + Σ step · axis; None if it is no such sum."""
    found = _affine(sympy.sympify(expr), tuple(axes))
    return None if found is None else (found[0], list(found[1]))


@remembered
def _affine(
    expr: sympy.Expr, axes: tuple[sympy.Symbol, ...]
) -> tuple[Size, tuple[Size, ...]] | None:
    wanted = set(axes)
    if not expr.free_symbols & wanted:
        return _plain(expr), (0,) * len(axes)
    start: sympy.Expr = sympy.Integer(0)
    steps: dict[sympy.Symbol, sympy.Expr] = {}
    for term in sympy.Add.make_args(sympy.expand(expr)):
        inside = term.free_symbols & wanted
        if not inside:
            start += term
            continue
        if len(inside) > 1:
            return None
        (one,) = inside
        step, rest = term.as_independent(one, as_Add=False)
        if rest != one:
            return None
        steps[one] = steps.get(one, sympy.Integer(0)) + step
    return _plain(start), tuple(_plain(steps.get(i, sympy.Integer(0))) for i in axes)


def _plain(expr: sympy.Expr) -> Size:
    return int(expr) if expr.is_Integer else expr


def flat(at: Sequence[Size], strides: Sequence[Size], offset: Size = 0) -> sympy.Expr:
    """offset + Σ coordinate · stride, with quotients and remainders of one number put together."""
    return _flat(tuple(at), tuple(strides), offset)


@remembered
def _flat(at: Shape, strides: Shape, offset: Size) -> sympy.Expr:
    total = sympy.sympify(offset)
    for place, stride in zip(at, strides, strict=True):
        total += place * stride
    return recombined(sympy.expand(total))


def recombined(expr: sympy.Expr) -> sympy.Expr:
    """n · (x // n) + x % n is x: what a reshape of contiguous memory comes to."""
    while True:
        terms = sympy.Add.make_args(expr)
        for term in terms:
            for inner in term.args if isinstance(term, sympy.Mul) else (term,):
                if not isinstance(inner, (Mod, PythonMod)):
                    continue
                x, n = inner.args
                factor = term / inner
                partner = sympy.expand(factor * n * FloorDiv(x, n))
                if set(sympy.Add.make_args(partner)) <= set(terms):  # several where n is a sum
                    expr = sympy.expand(expr - term - partner + factor * x)
                    break
            else:
                continue
            break
        else:
            return expr


def mapped(at: Sequence[Size], coordinates: Sequence[Size], domain: Sequence[Size]) -> Coordinates:
    """`at`, written in a value's own axes, for a value that is read at `coordinates`."""
    return _mapped(tuple(at), tuple(coordinates), tuple(domain))


@remembered
def _mapped(at: Shape, coordinates: Shape, domain: Shape) -> Coordinates:
    places = {axis(dim): sympy.sympify(place) for dim, place in enumerate(coordinates)}
    return tuple(_simple(sympy.sympify(a).xreplace(places), domain) for a in at)


def _simple(expr: sympy.Expr, domain: Shape) -> sympy.Expr:
    if expr.has(FloorDiv, Mod, PythonMod):
        return simplified([expr], domain)[0]
    alone = {axis(dim): sympy.Integer(0) for dim, size in enumerate(domain) if size == 1}
    return expr.xreplace(alone) if alone else expr


def broadcast_at(shape: Sequence[Size], into: Sequence[Size]) -> Coordinates:
    """Where an operand of this shape is read, aligned at the end."""
    ahead = len(into) - len(shape)
    return tuple(
        sympy.Integer(0) if size == 1 else axis(dim) for dim, size in enumerate(shape, ahead)
    )


def contiguous(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def same_strides(a: Sequence[Size], b: Sequence[Size], shape: Sequence[Size]) -> bool:
    """Whether these mean the same: dimensions of size 1 (or tensors of size 0) have no stride."""
    return 0 in shape or all(
        size == 1 or same(x, y) for x, y, size in zip(a, b, shape, strict=True)
    )


def collapsed(strides: Sequence[Size], shape: Sequence[Size], last: int) -> list[Size] | None:
    """Strides with the last dimensions as one, where memory allows."""
    if last <= 1:
        return list(strides)
    outer, inner = list(strides[:-last]), list(strides[-last:])
    sizes = shape[-last:]
    kept = [(s, n) for s, n in zip(inner, sizes, strict=True) if n != 1]
    for (stride, _), (below, size) in itertools.pairwise(kept):
        if not same(stride, below * size):
            return None
    return [*outer, kept[-1][0] if kept else 0]
