"""What the rules of lowering are written with: makes values, names them and keeps them in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import sympy
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import elementwise_dtypes
from torch.utils._sympy.functions import FloorDiv

from megafuse.graph import coordinates
from megafuse.graph.ir import (
    PRIMS,
    Constant,
    Coordinate,
    Gather,
    Origin,
    Pointwise,
    Reduce,
    ReduceKind,
    Size,
    Value,
    View,
    axis,
)
from megafuse.graph.names import Names

Scalar: TypeAlias = bool | int | float | sympy.Expr
Operand: TypeAlias = Value | Scalar
Shape: TypeAlias = tuple[Size, ...]
V = TypeVar("V", bound=Value)

SUPPORTED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
HALVES = frozenset({torch.float16, torch.bfloat16})
# What is reduced to a number though there are no elements; of the others PyTorch raises.
OF_NOTHING: dict[ReduceKind, Scalar] = {"sum": 0, "prod": 1, "any": False, "all": True}


class Builder:
    """Makes the values of one graph. `out` is what torch says of the node that is being lowered."""

    def __init__(
        self, names: Names, sizes: Callable[[Sequence[Any]], Shape], trusts_indices: bool = False
    ) -> None:
        self.trusts_indices = trusts_indices
        self.sizes = sizes  # torch's sizes as ours
        self.values: list[Value] = []
        self.numbers: set[Value] = set()  # Python's, to promotion: the call's and made from these
        self.origin = Origin()
        self.out: Any = None
        self._names = names

    def add(self, value: V, name: str) -> V:
        """Puts the value into the graph."""
        value.name = self._names.fresh(name)
        value.origin = replace(self.origin, name=None)
        self.values.append(value)
        return value

    def rename(self, value: Value, origin: Origin) -> None:
        """Gives it the user's name."""
        value.name, value.origin = self._names.fresh(origin.name or value.name), origin

    # Dtypes

    def promoted(self, *operands: Operand, kind: Promotion = Promotion.DEFAULT) -> torch.dtype:
        """The dtype that PyTorch computes in for these operands; 16-bit floats stay so."""
        _, result = elementwise_dtypes(
            *(self._like(operand) for operand in operands), type_promotion_kind=kind
        )
        return result

    def _like(self, operand: Operand) -> Any:
        if not isinstance(operand, Value):
            if isinstance(operand, sympy.Expr):
                return 1 if operand.is_integer else 1.0
            return operand
        if operand in self.numbers:
            return 1.0 if operand.dtype.is_floating_point else 1
        return torch.empty((1,) * bool(operand.shape), dtype=operand.dtype, device="meta")

    def to(self, operand: Operand, dtype: torch.dtype) -> Value:
        """The operand in a dtype, as promotion has it; a number is not rounded to 16 bits."""
        if not isinstance(operand, Value):
            if isinstance(operand, sympy.Expr) and dtype in HALVES:  # 65,536 is none of float16
                return self.demote(self.constant(operand, torch.float32), dtype)
            return self.constant(operand, dtype)
        if operand.dtype == dtype:
            return operand
        if operand in self.numbers and dtype in HALVES:
            return self.demote(self.cast(operand, torch.float32), dtype)
        return self.cast(operand, dtype)

    def cast(self, x: Value, dtype: torch.dtype) -> Value:
        """x rounded to the dtype."""
        return x if x.dtype == dtype else self._pointwise("cast", dtype, x)

    def demote(self, x: Value, dtype: torch.dtype) -> Value:
        """The end of what was done in float32 or float64 for a result of this dtype."""
        if dtype not in HALVES or x.dtype == dtype:
            return self.cast(x, dtype)
        return self._pointwise("demote", dtype, self.cast(x, torch.float32))

    def wide(self, x: Value) -> Value:
        """x in float32 at least: what sums and the like are taken in."""
        return self.cast(x, torch.float32) if x.dtype in HALVES else x

    # Values

    def constant(self, value: Scalar, dtype: torch.dtype) -> Constant:
        if not isinstance(value, sympy.Expr):
            value = _converted(value, dtype)
        elif value.is_number:
            value = _converted(int(value) if value.is_integer else float(value), dtype)
        return self.add(Constant(dtype=dtype, shape=(), value=value), "constant")

    def apply(self, prim: str, *operands: Operand, dtype: torch.dtype | None = None) -> Value:
        """prim(…) of operands of one dtype: that of the first value among them, or `dtype`."""
        first = next((o for o in operands[prim == "where" :] if isinstance(o, Value)), None)
        dtype = dtype or (first.dtype if first is not None else torch.float32)
        values = [self.to(operand, dtype) for operand in operands[prim == "where" :]]
        if prim == "where":
            values.insert(0, self.to(operands[0], torch.bool))
        return self._pointwise(prim, torch.bool if PRIMS[prim].gives == "bool" else dtype, *values)

    def _pointwise(self, prim: str, dtype: torch.dtype, *inputs: Value) -> Value:
        shape = broadcast(*(value.shape for value in inputs))
        value = Pointwise(dtype=dtype, shape=shape, prim=PRIMS[prim], inputs=inputs)
        scalars = [operand for operand in inputs if not isinstance(operand, Constant)]
        if scalars and dtype != torch.bool and self.numbers.issuperset(scalars):
            self.numbers.add(value)
        return self.add(value, prim)

    def coordinate(self, shape: Shape, dim: int) -> Value:
        return self.add(Coordinate(dtype=torch.int64, shape=shape, dim=dim), "index")

    def view(self, x: Value, shape: Shape, at: Sequence[Size]) -> Value:
        """x[at], within bounds."""
        if 0 in shape:
            at = [0] * len(at)  # nothing is read
        at = coordinates.simplified(at, shape)
        if at == coordinates.identity(shape) and coordinates.same_shape(shape, x.shape):
            return x
        return self.add(View(dtype=x.dtype, shape=shape, source=x, at=at), "view")

    def expanded(self, x: Value, shape: Shape) -> Value:
        """x broadcast to the shape."""
        ahead = len(shape) - len(x.shape)
        at = [0 if n == 1 else axis(dim) for dim, n in enumerate(x.shape, ahead)]
        return self.view(x, shape, at)

    def reshaped(self, x: Value, shape: Shape) -> Value:
        return self.view(x, shape, coordinates.reshape(x.shape, shape))

    def halves(self, x: Value, dim: int) -> tuple[Value, Value]:
        """The first and the second half along dim."""
        dim %= len(x.shape)
        half = FloorDiv(x.shape[dim], 2)
        shape = (*x.shape[:dim], half, *x.shape[dim + 1 :])
        first = list(coordinates.identity(shape))
        second = [i + half if k == dim else i for k, i in enumerate(first)]
        return self.view(x, shape, first), self.view(x, shape, second)

    def filled(self, shape: Shape, value: Operand, dtype: torch.dtype) -> Value:
        """A tensor that is `value` everywhere."""
        return self.expanded(self.tensor(value, dtype), shape)

    def tensor(self, value: Operand, dtype: torch.dtype) -> Value:
        """A number as a tensor: no longer a number to promotion."""
        made = self.to(value, dtype)
        if made in self.numbers:
            made = self._pointwise("cast", dtype, made)
            self.numbers.discard(made)
        return made

    def out_shape(self) -> Shape:
        """The shape of the node's only result."""
        return self.sizes(self.out.shape)

    def gather(
        self, x: Value, shape: Shape, at: Sequence[Size | Value], otherwise: float | None = None
    ) -> Value:
        value = Gather(dtype=x.dtype, shape=shape, source=x, at=tuple(at), otherwise=otherwise)
        return self.add(value, "gather")

    def reduce(self, kind: ReduceKind, x: Value, dims: Sequence[int], keep: bool = False) -> Value:
        """Along dims, or all where none are given. In x's dtype, but arg… gives int64."""
        rank = len(x.shape)
        every = tuple(sorted({dim % rank for dim in dims} if dims and rank else range(rank)))
        shape = tuple(
            1 if dim in every else size
            for dim, size in enumerate(x.shape)
            if keep or dim not in every
        )
        if kind in OF_NOTHING and any(x.shape[dim] == 0 for dim in every):
            return self.filled(shape, OF_NOTHING[kind], x.dtype)  # no kernel has empty rows
        dtype = torch.int64 if kind in ("argmax", "argmin") else x.dtype
        made = Reduce(dtype=dtype, shape=shape, kind=kind, source=x, dims=every, keep=keep)
        return self.add(made, kind)


def _converted(value: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return float(value)
    return int(value) if math.isfinite(value) else 0


def broadcast(*shapes: Shape) -> Shape:
    """The shape that these broadcast into."""
    rank = max((len(shape) for shape in shapes), default=0)
    out: list[Size] = [1] * rank
    for shape in shapes:
        for dim, size in enumerate(shape, rank - len(shape)):
            if out[dim] == 1:
                out[dim] = size
    return tuple(out)
