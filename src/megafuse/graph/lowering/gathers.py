"""Loads at computed places: cat, pad and scatters of slices as masked loads; indices as values.

PyTorch raises an IndexError for an index that is out of bounds, which a kernel cannot. So `gather`,
`embedding` and the like with indices that come from outside stay Externs and keep the error, unless
lower() is told that indices can be trusted; then what is out of bounds reads as NaN (integers: 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from megafuse.graph.coordinates import identity, same_shape
from megafuse.graph.ir import Constant, Size, Value, View, axis
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.table import NotLowered, rule
from megafuse.graph.lowering.views import along, clipped

aten = torch.ops.aten


@rule(aten.cat.default)
def cat(b: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """The last piece whose start is not beyond the coordinate, each a masked load."""
    shape, dtype = b.out_shape(), b.out.dtype
    pieces = [b.to(x, dtype) for x in tensors if x.shape != (0,) or len(shape) == 1]
    dim = dim % len(shape)
    if len(pieces) == 1:
        return pieces[0]
    result: Value | None = None
    start: Size = sympy.Integer(0)
    for piece in pieces:
        at = list(identity(shape))
        at[dim] = at[dim] - start
        loaded = b.gather(piece, shape, at, otherwise=0.0)
        if result is None:
            result = loaded
        else:
            here = b.apply("ge", _index(b, shape, dim), start)
            result = b.apply("where", here, loaded, result)
        start += piece.shape[dim]
    if result is None:
        raise NotLowered
    return result


def _index(b: Builder, shape: tuple[Size, ...], dim: int) -> Value:
    """The coordinate along dim, of a shape that broadcasts."""
    return b.coordinate((shape[dim], *(1,) * (len(shape) - dim - 1)), 0)


@rule(aten.constant_pad_nd.default)
def constant_pad(b: Builder, x: Value, pad: Sequence[Size], value: Operand = 0) -> Value:
    if isinstance(value, (Value, sympy.Expr)):
        raise NotLowered
    at = list(identity(x.shape))
    for k in range(len(pad) // 2):
        at[-1 - k] = at[-1 - k] - pad[2 * k]
    if all(p == 0 for p in pad):
        return x
    return b.gather(x, b.out_shape(), at, otherwise=float(value))


@rule(aten.slice_scatter.default)
def slice_scatter(
    b: Builder,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Value:
    """x with a slice of it replaced: what x[a:b] = source becomes."""
    dim = along(x, dim)
    first = clipped(start, x.shape[dim])
    at = list(identity(x.shape))
    at[dim] = FloorDiv(axis(dim) - first, step) if step != 1 else axis(dim) - first
    source = b.to(source, x.dtype)
    loaded = b.gather(source, x.shape, at, otherwise=0.0)
    if step == 1 and _is_zero(x):
        return loaded  # what the gradient of a slice is
    index = _index(b, x.shape, dim)
    size = source.shape[dim]
    inside = b.apply(
        "logical_and", b.apply("ge", index, first), b.apply("lt", index, first + size * step)
    )
    if step != 1:
        on = b.apply("eq", b.apply("mod", b.apply("sub", index, first), step), 0)
        inside = b.apply("logical_and", inside, on)
    return b.apply("where", inside, loaded, x)


def _is_zero(x: Value) -> bool:
    source = x.source if isinstance(x, View) else x
    return isinstance(source, Constant) and source.value == 0


@rule(aten.select_scatter.default)
def select_scatter(b: Builder, x: Value, source: Value, dim: int, index: Size) -> Value:
    """By the library where a later call may have an index or sizes that PyTorch raises for."""
    dim = along(x, dim)
    if not isinstance(index, int):
        raise NotLowered
    if not same_shape(source.shape, (*x.shape[:dim], *x.shape[dim + 1 :])):
        raise NotLowered
    place = index if index >= 0 else index + x.shape[dim]
    shape = (*source.shape[:dim], 1, *source.shape[dim:])
    here = b.apply("eq", _index(b, x.shape, dim), place)
    return b.apply("where", here, b.reshaped(b.to(source, x.dtype), shape), x)


@rule(aten.diagonal_backward.default)
def diagonal_backward(
    b: Builder, grad: Value, sizes: Sequence[Size], offset: Size, dim1: int, dim2: int
) -> Value:
    """The gradient on the diagonal, 0 elsewhere: no scatter needed."""
    if not isinstance(offset, int):
        raise NotLowered
    shape = b.out_shape()
    row, column = dim1 % len(shape), dim2 % len(shape)
    others = [axis(dim) for dim in range(len(shape)) if dim not in (row, column)]
    on_it = axis(row) - max(-offset, 0)  # which of the diagonal's elements, where it is one
    loaded = b.gather(grad, shape, [*others, on_it], otherwise=0.0)
    place = _index(b, shape, row)
    if offset != 0:
        place = b.apply("add", place, offset)
    return b.apply("where", b.apply("eq", _index(b, shape, column), place), loaded, 0)


def _checked(b: Builder) -> None:
    if not b.trusts_indices:
        raise NotLowered


def _elsewhere(x: Value) -> float:
    return float("nan") if x.dtype.is_floating_point else 0.0


@rule(aten.index_select.default)
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    _checked(b)
    if not x.shape or len(index.shape) != 1:
        raise NotLowered
    dim, shape = along(x, dim), b.out_shape()
    at: list[Any] = list(identity(shape))
    at[dim] = b.reshaped(index, (index.shape[0], *(1,) * (len(shape) - dim - 1)))
    return b.gather(x, shape, at, _elsewhere(x))


@rule(aten.embedding.default)
def embedding(b: Builder, weight: Value, indices: Value, *options: Any, **more: Any) -> Value:
    _checked(b)
    shape = b.out_shape()
    row = b.reshaped(indices, (*indices.shape, 1))
    return b.gather(weight, shape, [row, axis(len(shape) - 1)], _elsewhere(weight))


@rule(aten.gather.default)
def gather(b: Builder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    _checked(b)
    if not x.shape or not index.shape:
        raise NotLowered
    at: list[Any] = list(identity(index.shape))
    at[along(x, dim)] = index
    return b.gather(x, index.shape, at, _elsewhere(x))


@rule(aten.index.Tensor)
def index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    _checked(b)
    return indexed(b, x, indices)


@rule(*([aten._unsafe_index.Tensor] if hasattr(aten, "_unsafe_index") else []))
def unsafe_index(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """Of torch's decompositions: these indices are within bounds."""
    return indexed(b, x, indices)


def indexed(b: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """x[indices] with broadcast integer indices, which may count from the end."""
    given = [k for k, index in enumerate(indices) if index is not None]
    values = [index for index in indices if index is not None]
    if any(v.dtype in (torch.bool, torch.uint8) for v in values):
        raise NotLowered
    if given != list(range(given[0], given[-1] + 1)):
        raise NotLowered
    shape, first = b.out_shape(), given[0]
    rank = len(shape) - (len(x.shape) - len(given))  # dimensions of the indices, broadcast
    after = len(shape) - first - rank
    at: list[Any] = []
    for dim in range(len(x.shape)):
        if dim in given:
            value = b.to(values[dim - first], torch.int64)
            from_end = b.apply("add", value, x.shape[dim])
            value = b.apply("where", b.apply("lt", value, 0), from_end, value)
            at.append(b.reshaped(value, (*value.shape, *(1,) * after)))
        else:
            at.append(axis(dim if dim < first else dim - len(given) + rank))
    return b.gather(x, shape, at, _elsewhere(x))


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    b: Builder,
    grad: Value,
    x: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: Size,
    total_weight: Value,
) -> Value:
    """−grad · weight at the target's place, 0 elsewhere: no scatter needed. Classes are along the
    last dimension of rows, and the second of images."""
    dim = len(x.shape) - 1 if len(x.shape) < 3 else 1
    after = (1,) * (len(x.shape) - dim - 1)

    def spread(value: Value) -> Value:
        """With a dimension of size 1 for the classes, unless it is one number."""
        shape = value.shape
        return b.reshaped(value, (*shape[:dim], 1, *shape[dim:])) if shape else value

    column = b.coordinate((x.shape[dim], *after), 0)
    labels = b.to(spread(target), torch.int64)
    here = b.apply("eq", column, labels)
    kept = b.apply("ne", labels, ignore_index)
    share = b.apply("neg", b.wide(grad))
    if reduction == 1:
        share = b.apply("div", share, b.wide(total_weight))
    share = spread(share)
    if weight is not None:
        share = b.apply("mul", share, b.reshaped(weight, (*weight.shape, *after)))
    result = b.apply("where", b.apply("logical_and", here, kept), share, 0, dtype=share.dtype)
    return b.demote(b.expanded(result, x.shape), x.dtype)
