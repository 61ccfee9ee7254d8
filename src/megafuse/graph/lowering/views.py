"""Views: which element of the source each element is. They cost nothing but index arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import Mod

from megafuse.graph.coordinates import identity
from megafuse.graph.ir import Size, Value, axis
from megafuse.graph.lowering.builder import Builder
from megafuse.graph.lowering.table import NotLowered, rule

aten, prims = torch.ops.aten, torch.ops.prims


def along(x: Value, dim: int) -> int:
    """The dimension, not negative; a tensor without dimensions has one of size 1."""
    return dim % len(x.shape) if x.shape else 0


@rule(aten.permute.default)
def permute(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    order = [along(x, dim) for dim in dims]
    shape = tuple(x.shape[dim] for dim in order)
    return b.view(x, shape, [axis(order.index(dim)) for dim in range(len(x.shape))])


@rule(aten.transpose.int)
def transpose(b: Builder, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(len(x.shape)))
    if order:
        one, other = along(x, dim0), along(x, dim1)
        order[one], order[other] = other, one
    return permute(b, x, order)


@rule(aten.t.default)
def t(b: Builder, x: Value) -> Value:
    return transpose(b, x, 0, -1)


@rule(aten.expand.default)
def expand(b: Builder, x: Value, size: Sequence[Size], implicit: bool = False) -> Value:
    return b.expanded(x, b.out_shape())


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def reshape(b: Builder, x: Value, size: Sequence[Size]) -> Value:
    return b.reshaped(x, b.out_shape())


@rule(
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def reshape_otherwise(b: Builder, x: Value, *how: object) -> Value:
    return b.reshaped(x, b.out_shape())


@rule(aten.slice.Tensor)
def slice_(
    b: Builder,
    x: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Value:
    dim = along(x, dim)
    first = clipped(start, x.shape[dim])
    at = list(identity(x.shape))
    at[dim] = first + axis(dim) * step
    return b.view(x, b.out_shape(), at)


def clipped(start: Any, size: Any) -> Size:
    """Where a slice starts: from the end if negative, and at most at the end."""
    if start is None or start == 0:
        return 0
    start, size = sympy.sympify(start), sympy.sympify(size)
    if start.is_negative:
        return sympy.Max(start + size, 0) if not size.is_number else max(int(start + size), 0)
    if start.is_nonnegative:
        return sympy.Min(start, size)
    return sympy.Piecewise((sympy.Max(start + size, 0), start < 0), (sympy.Min(start, size), True))


@rule(aten.select.int)
def select(b: Builder, x: Value, dim: int, index: Size) -> Value:
    dim = along(x, dim)
    rest = list(identity(b.out_shape()))
    return b.view(x, b.out_shape(), [*rest[:dim], _from_end(index, x.shape[dim]), *rest[dim:]])


def _from_end(index: Size, size: Size) -> Size:
    index = sympy.sympify(index)
    if index.is_nonnegative:
        return index
    if index.is_negative:
        return index + size
    return sympy.Piecewise((index + size, index < 0), (index, True))


@rule(aten.flip.default)
def flip(b: Builder, x: Value, dims: Sequence[int]) -> Value:
    at = list(identity(x.shape))
    for dim in dims if x.shape else ():
        dim = along(x, dim)
        at[dim] = x.shape[dim] - 1 - axis(dim)
    return b.view(x, x.shape, at)


@rule(aten.diagonal.default)
def diagonal(b: Builder, x: Value, offset: Size = 0, dim1: int = 0, dim2: int = 1) -> Value:
    if not isinstance(offset, int):
        raise NotLowered
    one, other = along(x, dim1), along(x, dim2)
    last = axis(len(x.shape) - 2)
    rest = iter(identity(x.shape))
    at: list[Size] = []
    for dim in range(len(x.shape)):
        if dim == one:
            at.append(last + max(-offset, 0))
        else:
            at.append(last + max(offset, 0) if dim == other else next(rest))
    return b.view(x, b.out_shape(), at)


@rule(aten.unfold.default)
def unfold(b: Builder, x: Value, dimension: int, size: Size, step: Size) -> Value:
    if not x.shape:
        return b.reshaped(x, b.out_shape())
    dim = along(x, dimension)
    at = list(identity(x.shape))
    at[dim] = axis(dim) * step + axis(len(x.shape))
    return b.view(x, b.out_shape(), at)


@rule(aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor)
def split(
    b: Builder, x: Value, split_size: Size | Sequence[Size], dim: int = 0
) -> tuple[Value, ...]:
    dim = along(x, dim)
    parts, start = [], sympy.Integer(0)
    for part in b.out:
        shape = b.sizes(part.shape)
        at = list(identity(shape))
        at[dim] = at[dim] + start
        parts.append(b.view(x, shape, at))
        start += shape[dim]
    return tuple(parts)


@rule(aten.unbind.int)
def unbind(b: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = along(x, dim)
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    rest = list(identity(shape))
    return tuple(b.view(x, shape, [*rest[:dim], k, *rest[dim:]]) for k in range(len(b.out)))


@rule(aten.roll.default)
def roll(b: Builder, x: Value, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Value:
    if not dims:
        flat = b.reshaped(x, (sympy.prod(x.shape),))
        return b.reshaped(roll(b, flat, shifts, [0]), x.shape)
    at = list(identity(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        dim = along(x, dim)
        if not isinstance(shift, int):
            raise NotLowered
        size = x.shape[dim]
        if size == 0:
            return x
        at[dim] = Mod(at[dim] + _backwards(shift, size), size)
    return b.view(x, x.shape, at)


def _backwards(shift: int, size: Size) -> Size:
    """−shift, as a number of steps forwards."""
    if isinstance(size, int) or size.is_number:
        return -shift % int(size)
    return -shift if shift < 0 else size * shift - shift


@rule(aten.repeat.default)
def repeat(b: Builder, x: Value, repeats: Sequence[Size]) -> Value:
    shape = b.out_shape()
    ahead = len(shape) - len(x.shape)
    at = [
        Mod(axis(dim), size) if size not in (0, 1) else 0 for dim, size in enumerate(x.shape, ahead)
    ]
    return b.view(x, shape, at)
