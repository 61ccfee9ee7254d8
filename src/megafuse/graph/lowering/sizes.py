"""Sizes as torch writes them, made simpler by what it knows of them."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min


def decided(size: Any) -> sympy.Expr:
    """Min(1, n − 1) is 1 where torch knows that n is 2 at least, and n//2 is 2 where n is 4 or 5:
    it broadcast by that."""
    expr: sympy.Expr = size.expr
    for division in expr.atoms(FloorDiv):
        bounds = size.shape_env.bound_sympy(division)
        if bounds.lower == bounds.upper:
            expr = expr.xreplace({division: bounds.lower})
    for choice in expr.atoms(Min, Max):
        if len(choice.args) != 2:
            continue
        one, other = choice.args
        over = size.shape_env.bound_sympy(one - other)
        if over.lower >= 0 or over.upper <= 0:
            larger, smaller = (one, other) if over.lower >= 0 else (other, one)
            expr = expr.xreplace({choice: larger if isinstance(choice, Max) else smaller})
    return expr


def cancelled(expr: sympy.Expr) -> sympy.Expr:
    """n²//n is n, as torch writes what is left of a view's size: nobody divides by a size of 0."""
    for division in expr.atoms(FloorDiv):
        top, by = division.args
        exact = top / by
        if not by.is_Integer and sympy.fraction(exact)[1] == 1:
            expr = expr.xreplace({division: exact})
    return expr
