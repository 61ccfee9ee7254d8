"""Prints a Graph, a line for each value:

h: f32[s0, 768] = mul(x, sigmoid)                       # line 12: h = x * torch.sigmoid(gate)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

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
)

_SHORT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}
_COLUMN = 56  # where comments start


def show(graph: Graph) -> str:
    """The graph as text, the same for the same graph."""
    lines = []
    before = None
    for value in graph.values:
        if isinstance(value, Result) and len(value.extern.results) == 1:
            continue  # stands for its Extern
        made = f"{_named(value)}: {typed(value)} = {_made(value)}"
        place = (value.origin.file, value.origin.line)
        if value.origin.line is not None and place != before:
            made = f"{made:{_COLUMN}}  # line {value.origin.line}: {value.origin.text}"
        before = place
        lines.append(made.rstrip())
    outputs = ", ".join("None" if out is None else out.name for out in graph.outputs)
    return "\n".join([*lines, f"return {outputs}"]) + "\n"


def typed(value: Value) -> str:
    """f32[s0, 768]"""
    return typed_as(value.dtype, value.shape)


def typed_as(dtype: torch.dtype, shape: Sequence[Size]) -> str:
    """The same of anything that has a dtype and sizes."""
    return f"{_SHORT.get(dtype, str(dtype).removeprefix('torch.'))}[{_sizes(shape)}]"


def _named(value: Value) -> str:
    if isinstance(value, Extern) and len(value.results) == 1:
        return value.results[0].name
    return value.name


def _sizes(sizes: Sequence[Size]) -> str:
    return ", ".join(str(size) for size in sizes)


def _made(value: Value) -> str:
    if isinstance(value, Input):
        return f"input {value.position}, strides ({_sizes(value.strides)})"
    if isinstance(value, Number):
        called = f", called {value.symbol}" if value.symbol is not None else ""
        return f"number {value.position}{called}"
    if isinstance(value, Constant):
        return str(value.value)
    if isinstance(value, Pointwise):
        return f"{value.prim.name}({', '.join(operand.name for operand in value.inputs)})"
    if isinstance(value, Coordinate):
        return f"coordinate {value.dim}"
    if isinstance(value, (View, Gather)):
        at = ", ".join(_argument(place) for place in value.at)
        masked = isinstance(value, Gather) and value.otherwise is not None
        return f"{value.source.name}[{at}]" + (f" or {value.otherwise}" if masked else "")  # type: ignore[union-attr]
    if isinstance(value, Reduce):
        keep = ", keep" if value.keep else ""
        return f"{value.kind}({value.source.name}, dims {list(value.dims)}{keep})"
    if isinstance(value, Extern):
        kwargs = [f"{name}={_argument(arg)}" for name, arg in value.kwargs.items()]
        return f"{value.target}({', '.join([*map(_argument, value.args), *kwargs])})"
    assert isinstance(value, Result)
    return f"{value.extern.name}: result {value.number}"


def _argument(arg: Any) -> str:
    if isinstance(arg, Value):
        return arg.name
    if isinstance(arg, (list, tuple)):
        return f"[{', '.join(map(_argument, arg))}]"
    return str(arg) if isinstance(arg, (sympy.Basic, torch.dtype)) else repr(arg)
