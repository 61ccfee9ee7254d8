"""The IR: a graph of values, each made from others by one small operation.

    Input, Number, Constant         what comes from outside
    Pointwise(prim, operands)       out[i] = prim(a[i], b[i], …), operands broadcast
    Coordinate(dim)                 out[i] = the dim-th coordinate of i
    View(source, at)                out[i] = source[at(i)], at written in symbols: no work
    Gather(source, at)              the same with values among the coordinates: a load
    Reduce(kind, source, dims)      a sum, a maximum, … along dims
    Extern(target, …), Result       any other ATen operation, left to the library

Sizes are ints or sympy expressions of the symbols that torch's tracer made up; the coordinates of a
View are expressions of these and of `axis(0)`, `axis(1)`, …: the coordinates in its own shape.
Values are compared by identity. Every value knows the user's name for it and the line it is from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import sympy
import torch

from megafuse.codegen.prims import PRIMS, Prim

Size: TypeAlias = int | sympy.Expr
ReduceKind = Literal["sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all"]


@functools.cache
def axis(dim: int) -> sympy.Symbol:
    """The coordinate along a dimension, as Views write it."""
    return sympy.Symbol(f"i{dim}", integer=True, nonnegative=True)


@dataclass(frozen=True)
class Origin:
    """Where a value comes from in the user's source."""

    name: str | None = None  # the variable it was assigned to
    file: str | None = None
    line: int | None = None
    text: str | None = None  # the line itself
    module: str | None = None  # whose forward it is in, by Dynamo's name for the nn.Module


@dataclass(eq=False, kw_only=True)
class Value:
    """What every value has. `name` is unique in its graph, and made from the user's."""

    dtype: torch.dtype
    shape: tuple[Size, ...]
    name: str = ""
    origin: Origin = field(default_factory=Origin)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values that this one is made from."""
        return ()


@dataclass(eq=False)
class Input(Value):
    """The position-th argument, a tensor. `strides` may hold symbols of their own."""

    position: int
    strides: tuple[Size, ...]
    offset: Size = 0
    saved: bool = False  # the backward's: by the forward, or an incoming gradient


@dataclass(eq=False)
class Number(Value):
    """The position-th argument, a Python number that comes anew with each call: shape ().

    `symbol` is what expressions call it: s, or 2·s of a size that is saved. Where it is a number or
    an expression of others, the graph is right only for an argument that is equal to it. None for a
    float that the forward has worked out from others and saved.
    """

    position: int
    symbol: sympy.Expr | None = None


@dataclass(eq=False)
class Constant(Value):
    """A number that the program was traced with, or an expression of sizes: shape ()."""

    value: bool | int | float | sympy.Expr


@dataclass(eq=False)
class Pointwise(Value):
    """`prim` of the operands' elements. Operands have its dtype, but for `where`'s first and
    those of prims that return bool; their shapes broadcast into its own, aligned at the end.

    Nothing is rounded between two of them but by `cast` (or where rounding="eager" asks for it):
    a 16-bit dtype here says what PyTorch would store, not what is computed in.
    """

    prim: Prim
    inputs: tuple[Value, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.inputs


@dataclass(eq=False)
class Coordinate(Value):
    """The coordinate along `dim` of each element of its shape, as int64."""

    dim: int


@dataclass(eq=False)
class View(Value):
    """source[at], a coordinate for each dimension of the source."""

    source: Value
    at: tuple[Size, ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.source,)


@dataclass(eq=False)
class Gather(Value):
    """source[at], where some coordinates are integer values that broadcast into its shape.

    They are within bounds, or the load is masked: elsewhere it gives `otherwise`, if that is set.
    """

    source: Value
    at: tuple[Size | Value, ...]
    otherwise: float | None = None

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.source, *(a for a in self.at if isinstance(a, Value)))


@dataclass(eq=False)
class Reduce(Value):
    """The elements along `dims` (sorted, not negative) as one; with `keep` these stay, of size 1.

    Sums of integers and bools are in int64, floats in a float that is at least float32. The largest
    of no elements is −inf (or the smallest integer), the smallest inf.

    A sum of everything may be left in `parts`, along one more dimension: the kernel says which
    elements each part is the sum of.
    """

    kind: ReduceKind
    source: Value
    dims: tuple[int, ...]
    keep: bool
    parts: int = 0

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.source,)


@dataclass(eq=False)
class Extern(Value):
    """A call of an ATen operation. Values among `args` and `kwargs` are tensors, expressions are
    ints. Its own dtype and shape are those of its first result; `results` has all."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Result, ...] = ()

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(_values_in((*self.args, *self.kwargs.values())))


@dataclass(eq=False)
class Result(Value):
    """The number-th tensor that an Extern returns, and how it lies in memory."""

    extern: Extern
    number: int
    strides: tuple[Size, ...] = ()

    @property
    def operands(self) -> tuple[Value, ...]:
        return (self.extern,)


@dataclass
class Graph:
    """Values in an order in which each comes after its operands."""

    inputs: list[Input | Number]  # by position
    values: list[Value]
    outputs: list[Value | None]
    # How eager's outputs lie in memory; None for numbers.
    strides: list[tuple[Size, ...] | None] = field(default_factory=list)
    # Tensors that the function made from Python's numbers: the inputs after the arguments.
    constants: list[torch.Tensor] = field(default_factory=list)

    def users(self) -> dict[Value, list[Value]]:
        """Who reads each value."""
        users: dict[Value, list[Value]] = {value: [] for value in self.values}
        for value in self.values:
            for operand in dict.fromkeys(value.operands):
                users[operand].append(value)
        return users


def _values_in(nested: Sequence[Any]) -> Iterator[Value]:
    for item in nested:
        if isinstance(item, Value):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _values_in(item)


__all__ = [
    "PRIMS",
    "Constant",
    "Coordinate",
    "Extern",
    "Gather",
    "Graph",
    "Input",
    "Number",
    "Origin",
    "Pointwise",
    "Reduce",
    "Result",
    "Size",
    "Value",
    "View",
    "axis",
]
