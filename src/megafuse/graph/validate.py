"""Checks a Graph between passes: order, names, dtypes, shapes. Raises with the value's name."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sympy
import torch

from megafuse.codegen.prims import Kind
from megafuse.graph.coordinates import same, same_shape
from megafuse.graph.ir import (
    Constant,
    Coordinate,
    Extern,
    Gather,
    Graph,
    Input,
    Number,
    Pointwise,
    Reduce,
    Result,
    Size,
    Value,
    View,
    axis,
)


class InvalidGraph(ValueError):
    """A pass made a graph that means nothing."""


def validate(graph: Graph) -> Graph:
    """The graph itself, if there is nothing wrong with it."""
    known: set[Value] = set()
    names: set[str] = set()
    for value in graph.values:
        _demand(value, bool(value.name) and value.name not in names, "has no name of its own")
        for operand in value.operands:
            _demand(value, operand in known, "comes before its operand {}", operand.name)
        _CHECKS[type(value)](value)
        known.add(value)
        names.add(value.name)
    for output in graph.outputs:
        if output is not None:
            _demand(output, output in known, "is an output, but not in the graph")
    positions = [value.position for value in graph.inputs]
    for value in graph.inputs:
        _demand(value, value in known, "is an input, but not in the graph")
    if positions != list(range(len(positions))):
        raise InvalidGraph(f"the inputs' positions are {positions}")
    if graph.strides and len(graph.strides) != len(graph.outputs):
        raise InvalidGraph(f"{len(graph.outputs)} outputs have {len(graph.strides)} strides")
    return graph


def _demand(value: Value, holds: bool, otherwise: str, *shown: object) -> None:
    """`otherwise` has a {} for each thing to show: expressions take long to write out."""
    if not holds:
        name = value.name or type(value).__name__
        raise InvalidGraph(f"{name} {otherwise.format(*shown)}")


def is_kind(dtype: torch.dtype, kind: Kind) -> bool:
    """Whether a primitive of this kind takes the dtype."""
    if kind == "any":
        return True
    if dtype == torch.bool:
        return kind == "bool"
    return kind in ("number", "float" if dtype.is_floating_point else "integer")


def _input(value: Input) -> None:
    _demand(value, len(value.shape) == len(value.strides), "has not one stride for each size")


def _number(value: Number) -> None:
    numbers = (torch.float64, torch.int64)
    _demand(value, value.shape == () and value.dtype in numbers, "is no float64 or int64")


def _constant(value: Constant) -> None:
    _demand(value, value.shape == (), "is a constant with a shape")
    if isinstance(value.value, (bool, int, float)):
        kind = {bool: torch.bool, float: torch.float64}.get(type(value.value), torch.int64)
        floats = value.dtype.is_floating_point == kind.is_floating_point
        bools = (value.dtype == torch.bool) == (kind == torch.bool)
        _demand(value, floats and bools, "is {!r}, but of {}", value.value, value.dtype)


def _pointwise(value: Pointwise) -> None:
    prim, inputs = value.prim, value.inputs
    _demand(value, len(inputs) == prim.operands, "has {} operands for {}", len(inputs), prim.name)
    if prim.name == "where":
        _demand(value, inputs[0].dtype == torch.bool, "chooses by {}, not a bool", inputs[0].name)
        inputs = inputs[1:]
    dtypes = {operand.dtype for operand in inputs}
    if prim.name == "demote":
        _demand(value, dtypes == {torch.float32}, "demotes {}", inputs[0].dtype)
        _demand(value, value.dtype in (torch.float16, torch.bfloat16), "gives {}", value.dtype)
    elif prim.name != "cast":
        _demand(value, len(dtypes) == 1, "mixes {} in {}", sorted(map(str, dtypes)), prim.name)
        gives = _given(value)
        _demand(
            value, value.dtype in gives, "is {}, but {} gives {}", value.dtype, prim.name, gives
        )
        takes = is_kind(inputs[0].dtype, prim.kind)
        _demand(value, takes, "is {} of {}, which it does not take", prim.name, inputs[0].dtype)
    for operand in value.inputs:
        fits = _broadcasts(operand.shape, value.shape)
        _demand(
            value,
            fits,
            "has shape {}, not that of {}: {}",
            value.shape,
            operand.name,
            operand.shape,
        )
    covered = all(
        size == 1 or any(_has(operand.shape, dim, len(value.shape)) for operand in value.inputs)
        for dim, size in enumerate(value.shape)
    )
    _demand(value, covered, "has shape {}, larger than all of its operands'", value.shape)


def _given(value: Pointwise) -> tuple[torch.dtype, ...]:
    """What its primitive may give."""
    if value.prim.gives == "float":
        return torch.float32, torch.float64
    return (torch.bool if value.prim.gives == "bool" else value.inputs[-1].dtype,)


def _broadcasts(shape: tuple[Size, ...], into: tuple[Size, ...]) -> bool:
    if len(shape) > len(into):
        return False
    ends = into[len(into) - len(shape) :]
    return all(size == 1 or same(size, end) for size, end in zip(shape, ends, strict=True))


def _has(shape: tuple[Size, ...], dim: int, rank: int) -> bool:
    """Whether a shape that broadcasts into one of this rank has more than 1 element along dim."""
    at = dim - (rank - len(shape))
    return at >= 0 and shape[at] != 1


def _coordinate(value: Coordinate) -> None:
    _demand(value, value.dtype == torch.int64, "is a coordinate of {}", value.dtype)
    _demand(value, 0 <= value.dim < len(value.shape), "has no dimension {}", value.dim)


def _view(value: View | Gather) -> None:
    source, rank = value.source, len(value.shape)
    _demand(
        value, value.dtype == source.dtype, "is {}, {} {}", value.dtype, source.name, source.dtype
    )
    _demand(value, len(value.at) == len(source.shape), "reads {} at {}", source.name, value.at)
    axes = _axes_beyond(rank)
    for place in value.at:
        if isinstance(place, Value):
            integer = not place.dtype.is_floating_point and place.dtype != torch.bool
            _demand(value, integer, "reads at {}, which is {}", place.name, place.dtype)
            _demand(value, _broadcasts(place.shape, value.shape), "reads at {}", place.name)
        else:
            free = sympy.sympify(place).free_symbols
            _demand(value, not free & axes, "reads at {}, but has {} dimensions", place, rank)


@functools.cache
def _axes_beyond(rank: int) -> frozenset[sympy.Symbol]:
    return frozenset(axis(dim) for dim in range(rank, rank + 16))


def _reduce(value: Reduce) -> None:
    source, rank = value.source, len(value.source.shape)
    dims = list(value.dims)
    _demand(
        value, dims == sorted({d for d in dims if 0 <= d < rank}), "reduces {} of {}", dims, rank
    )
    shape = [
        1 if dim in dims else size
        for dim, size in enumerate(source.shape)
        if value.keep or dim not in dims
    ]
    if value.parts:
        whole = value.kind == "sum" and all(size == 1 for size in shape)
        _demand(value, whole, "leaves {} parts of what is no sum of everything", value.parts)
        shape.append(value.parts)
    _demand(value, same_shape(shape, value.shape), "has shape {}, not {}", value.shape, shape)
    places = value.kind in ("argmax", "argmin")
    dtype = torch.int64 if places else source.dtype
    _demand(value, value.dtype == dtype, "is {}, not {}", value.dtype, dtype)
    if value.kind in ("any", "all"):
        _demand(value, dtype == torch.bool, "is {} of {}", value.kind, dtype)
    if places:
        _demand(value, len(dims) <= 1, "is {} along {}: one dimension only", value.kind, dims)
    elif value.kind in ("sum", "prod"):
        halves = (torch.float16, torch.bfloat16)
        _demand(value, dtype not in halves, "adds in {}; float32 is the least", dtype)


def _extern(value: Extern) -> None:
    for result in value.results:
        _demand(value, result.extern is value, "is not where {} comes from", result.name)


def _result(value: Result) -> None:
    _demand(value, value in value.extern.results, "is no result of {}", value.extern.name)


_CHECKS: dict[type[Value], Callable[..., None]] = {
    Input: _input,
    Number: _number,
    Constant: _constant,
    Pointwise: _pointwise,
    Coordinate: _coordinate,
    View: _view,
    Gather: _view,
    Reduce: _reduce,
    Extern: _extern,
    Result: _result,
}
