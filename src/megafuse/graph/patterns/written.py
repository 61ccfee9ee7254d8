"""What patterns ask of a value: which primitive it is, and which number."""

from __future__ import annotations

import math

from megafuse.graph.ir import Constant, Pointwise, Value

_NEAR = 1e-6  # constants are given with seven digits and more


def is_prim(value: Value, prim: str) -> bool:
    return isinstance(value, Pointwise) and value.prim.name == prim


def number_in(value: Value) -> float | None:
    """The number that a constant is, in whatever dtype."""
    while is_prim(value, "demote") or is_prim(value, "cast"):
        (value,) = value.operands
    if not isinstance(value, Constant) or not isinstance(value.value, (int, float)):
        return None
    return float(value.value)


def is_number(value: Value, number: float) -> bool:
    found = number_in(value)
    return found is not None and math.isclose(found, number, rel_tol=_NEAR)
