"""GELU written out is the primitive: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), and the erf form.

Factors may stand in any order, and the cube as pow(x, 3) or x·x·x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import same_shape
from megafuse.graph.ir import PRIMS, Constant, Graph, Pointwise, Value

_NEAR = 1e-6  # the constants are given with seven digits and more


def whole_gelu(graph: Graph) -> Graph:
    """With the primitive wherever it is written out."""
    return rewrite(graph, lambda value: _found(value) or value)


def _found(value: Value) -> Value | None:
    if not _is(value, "mul") or not value.dtype.is_floating_point:
        return None
    factors = list(_factors(value))
    half = [f for f in factors if _is_number(f, 0.5)]
    sums = [f for f in factors if _is(f, "add")]
    if len(factors) != 3 or len(half) != 1 or len(sums) != 1:
        return None
    (x,) = (f for f in factors if f not in (half[0], sums[0]))
    form = _form(sums[0], x)
    if form is None or x.dtype != value.dtype or not same_shape(x.shape, value.shape):
        return None
    return Pointwise(PRIMS[form], (x,), dtype=value.dtype, shape=value.shape)


def _form(one_more: Value, x: Value) -> str | None:
    """Which GELU of x has this as its factor: 1 + tanh(…), or 1 + erf(x/√2)."""
    for number, inner in _pairs(one_more):
        if not _is_number(number, 1):
            continue
        if _is(inner, "erf") and _is_x_times(inner.operands[0], x, math.sqrt(0.5)):
            return "gelu"
        if _is(inner, "tanh") and _is_cubic(inner.operands[0], x):
            return "gelu_tanh"
    return None


def _is_cubic(value: Value, x: Value) -> bool:
    """√(2/π)·(x + 0.044715·x³)."""
    factors = list(_factors(value))
    numbers = [f for f in factors if _is_number(f, math.sqrt(2 / math.pi))]
    sums = [f for f in factors if _is(f, "add")]
    if len(factors) != 2 or len(numbers) != 1 or len(sums) != 1:
        return False
    return any(a is x and _is_cube(b, x) for a, b in _pairs(sums[0]))


def _is_cube(value: Value, x: Value) -> bool:
    """0.044715·x³."""
    rest = [f for f in _factors(value) if not _is_number(f, 0.044715)]
    if len(rest) == 1 and _is(rest[0], "pow"):
        base, by = rest[0].operands
        return base is x and _is_number(by, 3)
    return len(rest) == 3 and all(f is x for f in rest) and len(list(_factors(value))) == 4


def _is_x_times(value: Value, x: Value, number: float) -> bool:
    if _is(value, "div"):
        top, by = value.operands
        return top is x and _is_number(by, 1 / number)
    return _is(value, "mul") and any(a is x and _is_number(b, number) for a, b in _pairs(value))


def _factors(value: Value) -> Iterator[Value]:
    """Those of a product of products, from the left; one that is there twice comes twice."""
    if _is(value, "mul"):
        for operand in value.operands:
            yield from _factors(operand)
    else:
        yield value


def _pairs(value: Value) -> Iterator[tuple[Value, Value]]:
    """The two operands, in both orders."""
    if isinstance(value, Pointwise) and len(value.inputs) == 2:
        a, b = value.inputs
        yield a, b
        yield b, a


def _is(value: Value, prim: str) -> bool:
    return isinstance(value, Pointwise) and value.prim.name == prim


def _is_number(value: Value, number: float) -> bool:
    while _is(value, "demote") or _is(value, "cast"):
        (value,) = value.operands
    if not isinstance(value, Constant) or not isinstance(value.value, (int, float)):
        return False
    return math.isclose(value.value, number, rel_tol=_NEAR)
