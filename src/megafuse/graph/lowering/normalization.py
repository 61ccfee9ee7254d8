"""Softmax, layer norm and their like: each as its reductions, in float32 at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._sympy.functions import FloorDiv

from megafuse.graph.ir import Size, Value, axis
from megafuse.graph.layouts import memory_order
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.reductions import Dims, added, extreme, mean_of, moments
from megafuse.graph.lowering.table import NotLowered, rule

aten = torch.ops.aten


def check_rows(x: Value, dim: int) -> None:
    """A softmax along a dimension that is last neither in order nor in memory is done best by the
    library's own loop: taken apart, its largest and its sum would be a step each."""
    order = [d for d in memory_order(x) if x.shape[d] != 1]
    wide = dim % max(len(x.shape), 1)
    if order and wide in order and wide not in (order[-1], max(order)):
        raise NotLowered


_NARROW = (torch.float16, torch.bfloat16)


def power_of(b: Builder, x: Value, result: torch.dtype) -> Value:
    """e^x; in fewer instructions on the GPU where the result is rounded to 16 bits."""
    return b.apply("brief_exp" if result in _NARROW else "exp", x)


@rule(aten._softmax.default)
def softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    check_rows(x, dim)
    x, dtype = b.wide(x), b.out.dtype
    powers = power_of(b, b.apply("sub", x, extreme(b, x, True, dim, keep=True)), dtype)
    total = added(b, powers, dim, keep=True)
    if dtype in _NARROW:  # one division a row
        return b.demote(b.apply("mul", powers, b.apply("reciprocal", total)), dtype)
    return b.demote(b.apply("div", powers, total), dtype)


@rule(aten._log_softmax.default)
def log_softmax(b: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    check_rows(x, dim)
    x = b.wide(x)
    shifted = b.apply("sub", x, extreme(b, x, True, dim, keep=True))
    total = added(b, power_of(b, shifted, b.out.dtype), dim, keep=True)
    return b.demote(b.apply("sub", shifted, b.apply("log", total)), b.out.dtype)


@rule(aten._softmax_backward_data.default)
def softmax_backward(
    b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    check_rows(y, dim)
    grad, y = b.wide(grad), b.wide(y)
    product = b.apply("mul", grad, y)
    result = b.apply("sub", product, b.apply("mul", y, added(b, product, dim, keep=True)))
    return b.demote(result, b.out.dtype)


@rule(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    b: Builder, grad: Value, y: Value, dim: int, input_dtype: torch.dtype
) -> Value:
    check_rows(y, dim)
    grad, y = b.wide(grad), b.wide(y)
    power = power_of(b, y, b.out.dtype)
    share = b.apply("mul", power, added(b, grad, dim, keep=True))
    return b.demote(b.apply("sub", grad, share), b.out.dtype)


@rule(aten.logsumexp.default)
def logsumexp(b: Builder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log Σ exp(x − m) + m; where the largest is infinite, m is 0."""
    x = b.wide(b.to(x, b.out.dtype))
    largest = extreme(b, x, True, dim, keep=True)
    largest = b.apply("where", b.apply("isinf", largest), 0, largest, dtype=x.dtype)
    power = power_of(b, b.apply("sub", x, largest), b.out.dtype)
    total = added(b, power, dim, keep=True)
    result = b.apply("add", b.apply("log", total), largest)
    return b.demote(b.reshaped(result, b.out_shape()), b.out.dtype)


def normalised(
    b: Builder, x: Value, dims: Sequence[int], eps: Operand
) -> tuple[Value, Value, Value]:
    """(x − mean) · rstd, mean and rstd, with dims kept; x is in float32 at least."""
    variance, rough, off = moments(b, x, list(dims), 0)
    mean = b.apply("add", rough, off)
    rstd = b.apply("rsqrt", b.apply("add", variance, eps))
    return b.apply("mul", b.apply("sub", x, mean), rstd), mean, rstd


def scaled(b: Builder, x: Value, weight: Value | None, bias: Value | None) -> Value:
    if weight is not None:
        x = b.apply("mul", x, weight)
    return x if bias is None else b.apply("add", x, bias)


@rule(aten.native_layer_norm.default)
def layer_norm(
    b: Builder,
    x: Value,
    shape: Sequence[Size],
    weight: Value | None,
    bias: Value | None,
    eps: Operand,
) -> tuple[Value, Value, Value]:
    rank = len(x.shape)
    result, mean, rstd = normalised(b, b.wide(x), range(rank - len(shape), rank), eps)
    out = b.demote(scaled(b, result, weight, bias), b.out[0].dtype)
    return out, b.cast(mean, b.out[1].dtype), b.cast(rstd, b.out[2].dtype)


@rule(aten.native_group_norm.default)
def group_norm(
    b: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: Operand,
) -> tuple[Value, ...]:
    each, spatial = FloorDiv(C, group), x.shape[2:]  # channels of a group
    wide = b.wide(x)
    grouped = b.reshaped(wide, (N, group, each, *spatial))
    _, mean, rstd = normalised(b, grouped, range(2, len(grouped.shape)), eps)
    per_group = [b.reshaped(v, (N, group)) for v in (mean, rstd)]
    # x is read as it lies; only the group's numbers are looked up.
    ones = (1,) * len(spatial)
    centre, scale = (
        b.view(v, (N, C, *ones), (axis(0), FloorDiv(axis(1), each))) for v in per_group
    )
    result = b.apply("mul", b.apply("sub", wide, centre), scale)
    weight, bias = (None if p is None else b.reshaped(p, (C, *ones)) for p in (weight, bias))
    out = b.demote(scaled(b, result, weight, bias), b.out[0].dtype)
    return (out, *(b.demote(v, like.dtype) for v, like in zip(per_group, b.out[1:], strict=True)))


@rule(*([aten._fused_rms_norm.default] if hasattr(aten, "_fused_rms_norm") else []))
def rms_norm(
    b: Builder, x: Value, shape: Sequence[Size], weight: Value | None, eps: Any
) -> tuple[Value, Value]:
    rank = len(x.shape)
    dims = list(range(rank - len(shape), rank))
    wide = b.wide(x)
    if eps is None:
        eps = torch.finfo(wide.dtype).eps
    squares = mean_of(b, b.apply("mul", wide, wide), dims, keep=True)
    rstd = b.apply("rsqrt", b.apply("add", squares, eps))
    result = scaled(b, b.apply("mul", wide, rstd), weight, None)
    return b.demote(result, b.out[0].dtype), b.cast(rstd, b.out[1].dtype)
