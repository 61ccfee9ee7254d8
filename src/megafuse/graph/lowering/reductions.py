"""Reductions along any dimensions. Floats of 16 bits are summed in float32, integers in int64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch

from megafuse.graph.ir import ReduceKind, Size, Value
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.table import NotLowered, rule

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def listed(dims: Dims) -> list[int]:
    """As a list; an empty one is all dimensions."""
    return [] if dims is None else [dims] if isinstance(dims, int) else list(dims)


def along(x: Value, dims: Dims) -> list[int]:
    """The dimensions that are reduced, each once."""
    rank = len(x.shape)
    return sorted({dim % rank for dim in listed(dims)} if rank and listed(dims) else range(rank))


def count(x: Value, dims: Dims) -> Size:
    """How many elements are made one."""
    return sympy.prod([x.shape[dim] for dim in along(x, dims)])


def added(b: Builder, x: Value, dims: Dims, keep: bool = False) -> Value:
    return b.reduce("sum", x, listed(dims), keep)


def mean_of(b: Builder, x: Value, dims: Dims, keep: bool = False) -> Value:
    return b.apply("div", added(b, x, dims, keep), count(x, dims))


@rule(aten.sum.default, aten.sum.dim_IntList)
def sum_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
    dtype = b.out.dtype
    wide = b.wide(b.to(x, dtype) if dtype.is_floating_point else b.to(x, torch.int64))
    return b.demote(added(b, wide, dim, keepdim), dtype)


@rule(aten.mean.default, aten.mean.dim)
def mean(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return b.demote(mean_of(b, b.wide(b.to(x, b.out.dtype)), dim, keepdim), b.out.dtype)


@rule(aten.prod.default)
def prod(b: Builder, x: Value, dtype: Any = None) -> Value:
    return prod_along(b, x, None)


@rule(aten.prod.dim_int)
def prod_along(b: Builder, x: Value, dim: Dims, keepdim: bool = False, dtype: Any = None) -> Value:
    dtype = b.out.dtype
    return b.demote(b.reduce("prod", b.wide(b.to(x, dtype)), listed(dim), keepdim), dtype)


def extreme(b: Builder, x: Value, largest: bool, dims: Dims, keep: bool = False) -> Value:
    if x.dtype == torch.bool:
        return b.reduce("any" if largest else "all", x, listed(dims), keep)
    return b.reduce("amax" if largest else "amin", x, listed(dims), keep)


@rule(aten.amax.default)
def amax(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return extreme(b, x, True, dim, keepdim)


@rule(aten.amin.default)
def amin(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return extreme(b, x, False, dim, keepdim)


@rule(aten.max.default)
def max_(b: Builder, x: Value) -> Value:
    return extreme(b, x, True, None)


@rule(aten.min.default)
def min_(b: Builder, x: Value) -> Value:
    return extreme(b, x, False, None)


def place(b: Builder, x: Value, kind: ReduceKind, dim: Dims, keep: bool) -> Value:
    """The coordinate of the extreme; among bools, that of the first."""
    if x.dtype == torch.bool:
        x = b.cast(x, torch.uint8)
    if not x.shape:
        return b.constant(0, torch.int64)
    if dim is None:
        flat = b.reduce(kind, b.reshaped(x, (sympy.prod(x.shape),)), [0])
        return b.expanded(flat, (1,) * len(x.shape)) if keep else flat
    return b.reduce(kind, x, listed(dim), keep)


@rule(aten.argmax.default)
def argmax(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return place(b, x, "argmax", dim, keepdim)


@rule(aten.argmin.default)
def argmin(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return place(b, x, "argmin", dim, keepdim)


@rule(aten.max.dim)
def max_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return extreme(b, x, True, dim, keepdim), place(b, x, "argmax", dim, keepdim)


@rule(aten.min.dim)
def min_dim(b: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return extreme(b, x, False, dim, keepdim), place(b, x, "argmin", dim, keepdim)


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def any_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return b.cast(b.reduce("any", b.cast(x, torch.bool), listed(dim), keepdim), b.out.dtype)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def all_(b: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    return b.cast(b.reduce("all", b.cast(x, torch.bool), listed(dim), keepdim), b.out.dtype)


@rule(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def count_nonzero(b: Builder, x: Value, dim: Dims = None) -> Value:
    return added(b, b.cast(b.cast(x, torch.bool), torch.int64), dim)


def moments(b: Builder, x: Value, dim: Dims, correction: Any) -> tuple[Value, Value, Value]:
    """Variance and mean, in float32 at least and with `dim` kept, and what the mean is off by.

    Two passes over the data. The mean is a rounded sum, so the deviations from it have a mean of
    their own, which the second pass finds beside their squares. Without it, LayerNorm of a row of
    1,000 equal numbers is 7.5e-5; with it, 0 as in eager. A mean of infinities is off by NaN.
    """
    if isinstance(correction, Value):
        raise NotLowered
    x = b.wide(x)
    size = count(x, dim)
    mean = mean_of(b, x, dim, keep=True)
    deviation = b.apply("sub", x, mean)
    squares = added(b, b.apply("mul", deviation, deviation), dim, keep=True)
    rest = added(b, deviation, dim, keep=True)
    off = b.apply("div", rest, size)
    less = b.apply("maximum", b.apply("sub", squares, b.apply("mul", rest, off)), 0)
    squares = b.apply("where", b.apply("isinf", squares), squares, less)  # ∞ − ∞ is not asked for
    left = sympy.Max(size - (1 if correction is None else correction), 0)
    return b.apply("div", squares, left), mean, off


def var_and_mean(
    b: Builder, x: Value, dim: Dims, correction: Any, keep: bool, root: bool = False
) -> tuple[Value, Value]:
    """Variance, or its root, and mean, as they are returned."""
    variance, mean, _ = moments(b, x, dim, correction)
    if root:
        variance = b.apply("sqrt", variance)
    every = along(x, dim)
    shape = variance.shape
    if not keep:
        shape = tuple(size for i, size in enumerate(x.shape) if i not in every)
    return (
        b.demote(b.reshaped(variance, shape), x.dtype),
        b.demote(b.reshaped(mean, shape), x.dtype),
    )


@rule(aten.var.correction)
def var(
    b: Builder, x: Value, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> Value:
    return var_and_mean(b, x, dim, correction, keepdim)[0]


@rule(aten.std.correction)
def std(
    b: Builder, x: Value, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> Value:
    return var_and_mean(b, x, dim, correction, keepdim, root=True)[0]


@rule(aten.var_mean.correction)
def var_mean(
    b: Builder, x: Value, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return var_and_mean(b, x, dim, correction, keepdim)


@rule(aten.std_mean.correction)
def std_mean(
    b: Builder, x: Value, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    return var_and_mean(b, x, dim, correction, keepdim, root=True)


@rule(aten.linalg_vector_norm.default)
def vector_norm(
    b: Builder,
    x: Value,
    ord: Operand = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:
    size = b.apply("abs", b.wide(b.to(x, b.out.dtype)))
    if isinstance(ord, (Value, sympy.Expr)):
        raise NotLowered  # which formula it is depends on the number
    if math.isinf(ord):
        result = extreme(b, size, ord > 0, dim, keepdim)
    elif ord == 0:
        result = added(b, b.cast(b.apply("ne", size, 0), size.dtype), dim, keepdim)
    elif ord == 1:
        result = added(b, size, dim, keepdim)
    elif ord == 2:
        result = b.apply("sqrt", added(b, b.apply("mul", size, size), dim, keepdim))
    else:
        result = b.apply("pow", added(b, b.apply("pow", size, ord), dim, keepdim), 1 / ord)
    return b.demote(result, b.out.dtype)
