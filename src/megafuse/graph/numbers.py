"""Arithmetic on a call's numbers, done once on the host: as an expression, not in the kernel."""

from __future__ import annotations

import sympy
from torch.utils._sympy.functions import FloatPow, FloatTrueDiv, ToFloat

from megafuse.graph.ir import Constant, Number, Pointwise, Size, Value, View


def number_of(value: Value) -> Size | float | None:
    """The value as an expression of symbols, if it is a number that the host can work out; None if
    not. Python's own arithmetic is in float64 or int64, so nothing is rounded otherwise."""
    if value.shape:
        return None
    if isinstance(value, Number):
        return value.symbol
    if isinstance(value, Constant):
        if isinstance(value.value, sympy.Basic):
            return value.value
        return int(value.value) if isinstance(value.value, bool) else value.value
    if isinstance(value, View):
        return number_of(value.source)
    if not isinstance(value, Pointwise):
        return None
    return _of_pointwise(value)


def _of_pointwise(value: Pointwise) -> Size | float | None:
    if str(value.dtype) != "torch.float64":
        return None
    found = [number_of(operand) for operand in value.inputs]
    if any(n is None for n in found):
        return None
    args = [sympy.sympify(n) for n in found]
    if any(arg in (sympy.nan, sympy.oo, -sympy.oo, sympy.zoo) for arg in args):
        return None
    name = value.prim.name
    if name == "cast":
        source = value.inputs[0].dtype
        if source.is_floating_point:
            return args[0] if str(source) == "torch.float64" else None
        return args[0] if args[0].is_number else ToFloat(args[0])
    if name == "add":
        return args[0] + args[1]
    if name == "sub":
        return args[0] - args[1]
    if name == "mul":
        return args[0] * args[1]
    if name == "neg":
        return -args[0]
    if name == "div" and args[1] != 0:
        return FloatTrueDiv(args[0], args[1])
    if name == "pow":
        return FloatPow(args[0], args[1])
    return None
