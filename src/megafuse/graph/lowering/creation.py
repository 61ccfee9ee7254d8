"""Tensors out of nothing: constants, ranges, triangles of coordinates."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from megafuse.graph.ir import Value
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.table import NotLowered, rule

aten, prims = torch.ops.aten, torch.ops.prims


@rule(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(b: Builder, like: Any, *rest: Any, **how: Any) -> Value:
    value = how.get("fill_value", rest[-1] if rest else None)
    return b.filled(b.out_shape(), value, b.out.dtype)


@rule(aten.fill.Scalar, aten.fill.Tensor)
def fill(b: Builder, x: Value, value: Operand) -> Value:
    return b.filled(x.shape, value, x.dtype)


@rule(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.zero.default,
    # What is in these is nobody's business, and zeros are the same on every run.
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.empty_permuted.default,
)
def zeros(b: Builder, *like: Any, **how: Any) -> Value:
    return b.filled(b.out_shape(), 0, b.out.dtype)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(b: Builder, *like: Any, **how: Any) -> Value:
    return b.filled(b.out_shape(), 1, b.out.dtype)


@rule(aten.scalar_tensor.default)
def scalar_tensor(b: Builder, value: Operand, **how: Any) -> Value:
    return b.tensor(value, b.out.dtype)


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(b: Builder, *bounds: Operand, **how: Any) -> Value:
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else how.get("step", 1)
    return stepped(b, start, step)


@rule(prims.iota.default)
def iota(b: Builder, length: Any, *, start: Operand, step: Operand, **how: Any) -> Value:
    return stepped(b, start, step)


def stepped(b: Builder, start: Operand, step: Operand) -> Value:
    """start + step · i, in int64 where both are integers, else in float64 as PyTorch."""
    whole = all(
        isinstance(v, int) or (isinstance(v, sympy.Expr) and v.is_integer) for v in (start, step)
    )
    dtype = torch.int64 if whole else torch.float64
    index = b.to(b.coordinate(b.out_shape(), 0), dtype)
    if step != 1:
        index = b.apply("mul", index, step)
    if start != 0:
        index = b.apply("add", index, start)
    return b.cast(index, b.out.dtype)


@rule(aten.tril.default)
def tril(b: Builder, x: Value, diagonal: Operand = 0) -> Value:
    return b.apply("where", _below(b, x, "le", diagonal), x, 0)


@rule(aten.triu.default)
def triu(b: Builder, x: Value, diagonal: Operand = 0) -> Value:
    return b.apply("where", _below(b, x, "ge", diagonal), x, 0)


def _below(b: Builder, x: Value, compare: str, diagonal: Operand) -> Value:
    if isinstance(diagonal, Value):
        raise NotLowered
    shape = x.shape[-2:]
    distance = b.apply("sub", b.coordinate(shape, 1), b.coordinate(shape, 0))
    return b.apply(compare, distance, diagonal)


@rule(aten.eye.default, aten.eye.m)
def eye(b: Builder, *size: Any, **how: Any) -> Value:
    shape = b.out_shape()
    return b.cast(b.apply("eq", b.coordinate(shape, 0), b.coordinate(shape, 1)), b.out.dtype)
