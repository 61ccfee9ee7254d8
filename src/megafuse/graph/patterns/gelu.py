"""GELU written out is the primitive: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), and the erf form.

Factors may stand in any order, and the cube as pow(x, 3) or x·x·x.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import same_shape
from megafuse.graph.ir import PRIMS, Graph, Pointwise, Value
from megafuse.graph.patterns.written import is_number, is_prim


def whole_gelu(graph: Graph) -> Graph:
    """With the primitive wherever it is written out."""
    return rewrite(graph, lambda value: _found(value) or value)


def _found(value: Value) -> Value | None:
    if not is_prim(value, "mul") or not value.dtype.is_floating_point:
        return None
    factors = list(_factors(value))
    half = [f for f in factors if is_number(f, 0.5)]
    sums = [f for f in factors if is_prim(f, "add")]
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
        if not is_number(number, 1):
            continue
        if is_prim(inner, "erf") and _is_x_times(inner.operands[0], x, math.sqrt(0.5)):
            return "gelu"
        if is_prim(inner, "tanh") and _is_cubic(inner.operands[0], x):
            return "gelu_tanh"
    return None


def _is_cubic(value: Value, x: Value) -> bool:
    """√(2/π)·(x + 0.044715·x³)."""
    factors = list(_factors(value))
    numbers = [f for f in factors if is_number(f, math.sqrt(2 / math.pi))]
    sums = [f for f in factors if is_prim(f, "add")]
    if len(factors) != 2 or len(numbers) != 1 or len(sums) != 1:
        return False
    return any(a is x and _is_cube(b, x) for a, b in _pairs(sums[0]))


def _is_cube(value: Value, x: Value) -> bool:
    """0.044715·x³."""
    rest = [f for f in _factors(value) if not is_number(f, 0.044715)]
    if len(rest) == 1 and is_prim(rest[0], "pow"):
        base, by = rest[0].operands
        return base is x and is_number(by, 3)
    return len(rest) == 3 and all(f is x for f in rest) and len(list(_factors(value))) == 4


def _is_x_times(value: Value, x: Value, number: float) -> bool:
    if is_prim(value, "div"):
        top, by = value.operands
        return top is x and is_number(by, 1 / number)
    return is_prim(value, "mul") and any(a is x and is_number(b, number) for a, b in _pairs(value))


def _factors(value: Value) -> Iterator[Value]:
    """Those of a product of products, from the left; one that is there twice comes twice."""
    if is_prim(value, "mul"):
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
