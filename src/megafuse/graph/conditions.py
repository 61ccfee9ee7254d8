"""Comparisons of coordinates that come out the same for every element of a domain."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
from torch.utils._sympy.functions import PythonMod

from megafuse.graph.affine import Coordinates, broadcast_at, mapped
from megafuse.graph.coordinates import never_negative, simplified
from megafuse.graph.ir import Coordinate, Pointwise, Size, Value, View, axis
from megafuse.graph.numbers import number_of

Shape = Sequence[Size]


def decided(value: Value, at: Coordinates, domain: Shape) -> bool | None:
    """What a condition is at these coordinates, wherever in the domain; None: not proven."""
    if isinstance(value, View):
        return decided(value.source, mapped(value.at, at, domain), domain)
    if not isinstance(value, Pointwise):
        return None
    name = value.prim.name
    inputs = _inputs(value, at, domain)
    if name in ("logical_and", "logical_or", "logical_not"):
        return _combined(name, [decided(operand, place, domain) for operand, place in inputs])
    if name not in _COMPARED:
        return None
    left, right = (_place(operand, place, domain) for operand, place in inputs)
    if left is None or right is None:
        return None
    return _COMPARED[name](sympy.expand(left - right), domain)


def picks_of_pairs(value: Value, at: Coordinates, domain: Shape) -> sympy.Expr | None:
    """i − k of a condition i == k along a dimension of size 2: the gradient of x[..., k] has it."""
    if isinstance(value, View):
        return picks_of_pairs(value.source, mapped(value.at, at, domain), domain)
    if not isinstance(value, Pointwise) or value.prim.name != "eq":
        return None
    left, right = (_place(operand, place, domain) for operand, place in _inputs(value, at, domain))
    if left is None or right is None:
        return None
    difference = sympy.expand(left - right)
    sizes = [size for d, size in enumerate(domain) if axis(d) in difference.free_symbols]
    return difference if sizes == [2] else None


def is_outside(places: Coordinates, sizes: Shape, domain: Shape) -> bool:
    """Whether a coordinate is proven to be out of bounds for every element of the domain."""
    return any(
        never_negative(-1 - place, domain) or never_negative(place - size, domain)
        for place, size in zip(places, sizes, strict=True)
    )


def _inputs(value: Pointwise, at: Coordinates, domain: Shape) -> list[tuple[Value, Coordinates]]:
    return [(o, mapped(broadcast_at(o.shape, value.shape), at, domain)) for o in value.inputs]


def _combined(name: str, known: list[bool | None]) -> bool | None:
    if name == "logical_not":
        return None if known[0] is None else not known[0]
    decisive = name == "logical_or"
    if decisive in known:
        return decisive
    return None if None in known else not decisive


def _at_least(difference: sympy.Expr, domain: Shape) -> bool | None:
    if never_negative(difference, domain):
        return True
    return False if never_negative(-1 - difference, domain) else None


def _below(difference: sympy.Expr, domain: Shape) -> bool | None:
    known = _at_least(difference, domain)
    return None if known is None else not known


def _equal(difference: sympy.Expr, domain: Shape) -> bool | None:
    if difference == 0:
        return True
    apart = never_negative(difference - 1, domain) or never_negative(-1 - difference, domain)
    return False if apart else None


def _unequal(difference: sympy.Expr, domain: Shape) -> bool | None:
    known = _equal(difference, domain)
    return None if known is None else not known


_COMPARED = {
    "ge": _at_least,
    "gt": lambda difference, domain: _at_least(difference - 1, domain),
    "lt": _below,
    "le": lambda difference, domain: _below(difference - 1, domain),
    "eq": _equal,
    "ne": _unequal,
}


def _place(value: Value, at: Coordinates, domain: Shape) -> sympy.Expr | None:
    """An integer value as an expression of the domain's axes."""
    if value.dtype.is_floating_point:
        return None
    if isinstance(value, Coordinate):
        return at[value.dim]
    number = number_of(value)
    if number is not None:
        return sympy.sympify(number)
    if isinstance(value, View):
        return _place(value.source, mapped(value.at, at, domain), domain)
    if not isinstance(value, Pointwise) or value.prim.name not in ("add", "sub", "mod"):
        return None
    parts = [_place(operand, place, domain) for operand, place in _inputs(value, at, domain)]
    if parts[0] is None or parts[1] is None:
        return None
    if value.prim.name == "mod":
        if not parts[1].is_positive:
            return None  # the proofs below take remainders to be at least 0
        return sympy.sympify(simplified([PythonMod(parts[0], parts[1])], domain)[0])
    return parts[0] + parts[1] if value.prim.name == "add" else parts[0] - parts[1]
