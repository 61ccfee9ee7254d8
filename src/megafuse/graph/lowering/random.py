"""Random numbers: graph/draws.py's operations as primitives of a seed, an offset and a place."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from megafuse.graph.affine import contiguous, flat
from megafuse.graph.coordinates import identity
from megafuse.graph.cost import numel
from megafuse.graph.draws import ops
from megafuse.graph.ir import PRIMS, Constant, Pointwise, Value
from megafuse.graph.lowering.builder import Builder, Operand, Shape
from megafuse.graph.lowering.table import rule

# A uniform number in 16 bits is a multiple of 2 to minus this, as PyTorch's: none is rounded to 1.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8}


@rule(ops.uniform.default)
def uniform(b: Builder, state: Value, number: int, *how: Any) -> Value:
    dtype = b.out.dtype
    drawn = _drawn(b, "uniform", state, number, b.out_shape(), dtype)
    if dtype in _DIGITS:
        steps = 2.0 ** _DIGITS[dtype]
        drawn = b.apply("mul", b.apply("floor", b.apply("mul", drawn, steps)), 1 / steps)
    return b.demote(drawn, dtype)


@rule(ops.normal.default)
def normal(b: Builder, state: Value, number: int, *how: Any) -> Value:
    return b.demote(_drawn(b, "normal", state, number, b.out_shape(), b.out.dtype), b.out.dtype)


@rule(ops.dropout.default)
def dropout(b: Builder, x: Value, state: Value, number: int, p: Operand) -> Value:
    """Multiplied by 0, so that NaN and Inf give NaN where they are dropped, as in PyTorch."""
    drawn = _drawn(b, "uniform", state, number, x.shape, torch.float32)
    if isinstance(p, (int, float)):
        scale: Operand = 1 / (1 - p) if p < 1 else 0.0
    else:
        scale = b.apply("div", 1.0, b.apply("sub", 1.0, p, dtype=torch.float64))
    wide = b.wide(x)
    dropped = b.apply("lt", drawn, p)
    return b.demote(
        b.apply("mul", wide, b.apply("where", dropped, 0.0, scale, dtype=wide.dtype)), x.dtype
    )


def _drawn(
    b: Builder, prim: str, state: Value, number: int, shape: Shape, dtype: torch.dtype
) -> Value:
    """In float32 or float64. The number of the draw comes as a word, so that two kernels which
    differ in nothing else are one."""
    seed, offset = (b.view(state, (), [k]) for k in range(2))
    which = b.add(Constant(sympy.Integer(number), dtype=torch.int64, shape=()), "draw")
    place = b.view(
        b.coordinate((numel(shape),), 0), shape, [flat(identity(shape), contiguous(shape))]
    )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = seed, b.apply("add", offset, which), place
    return b.add(Pointwise(PRIMS[prim], inputs, dtype=wide, shape=shape), prim)
