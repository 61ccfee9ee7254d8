"""Runs a Graph with torch operations, value by value: what every later pass is compared with.

"eager"     every value in its own dtype, rounded to it, as PyTorch would store it
"fused"     16-bit floats stay in float32 between operations; cast and outputs round
"exact"     every float is a float64, and casts between floats do nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import sympy
import torch
from torch.utils import _pytree as pytree

from megafuse.graph import philox
from megafuse.graph.evaluate import Environment, evaluated
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
from megafuse.graph.multiples import told

Mode = Literal["eager", "fused", "exact"]
_HALVES = (torch.float16, torch.bfloat16)


def interpret(graph: Graph, args: Sequence[Any], mode: Mode = "eager") -> list[Any]:
    """The graph's outputs for these arguments (as many as it has inputs, less its constants)."""
    run = _Run(graph, [*args, *graph.constants], mode)
    for value in graph.values:
        run.values[value] = run.of(value)
    return [None if out is None else run.output(out) for out in graph.outputs]


class _Run:
    def __init__(self, graph: Graph, args: Sequence[Any], mode: Mode) -> None:
        self.mode, self.args = mode, args
        self.values: dict[Value, Any] = {}
        self.symbols: Environment = {}
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        for value in graph.inputs:
            arg = args[value.position]
            if isinstance(value, Number):
                self.bind(value.symbol, arg)
            else:
                for size, real in zip(value.shape, arg.shape, strict=True):
                    self.bind(size, real)
                for size, real in zip(value.strides, arg.stride(), strict=True):
                    self.bind(size, real)

    def bind(self, size: Any, real: int | float) -> None:
        found = told(size)
        if found is not None:
            self.symbols.setdefault(found[0], real if found[1] == 1 else real // found[1])

    def held(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that a value of this dtype is held in."""
        if not dtype.is_floating_point or self.mode == "eager":
            return dtype
        if self.mode == "exact":
            return torch.float64
        return torch.float32 if dtype in _HALVES else dtype

    def size(self, size: Size) -> int:
        return int(evaluated(size, self.symbols))

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.size(size) for size in value.shape)

    def output(self, value: Value) -> Any:
        made = self.values[value]
        return made if self.mode == "exact" else made.to(value.dtype)

    def of(self, value: Value) -> Any:
        made = getattr(self, type(value).__name__.lower())(value)
        if isinstance(made, torch.Tensor) and not isinstance(value, Extern):
            shape = self.shape(value)
            if tuple(made.shape) != shape:
                raise AssertionError(f"{value.name}: {tuple(made.shape)} is not {shape}")
        return made

    def input(self, value: Input) -> Any:
        tensor = self.args[value.position]
        return tensor.to(self.held(value.dtype))

    def number(self, value: Number) -> Any:
        return torch.tensor(self.args[value.position], dtype=value.dtype, device=self.device)

    def constant(self, value: Constant) -> Any:
        number = evaluated(value.value, self.symbols)
        return torch.tensor(number, dtype=self.held(value.dtype), device=self.device)

    def pointwise(self, value: Pointwise) -> Any:
        inputs = [self.values[operand] for operand in value.inputs]
        name = value.prim.name
        if name in ("cast", "demote"):
            return self.cast(inputs[0], value, rounds=name == "cast")
        if value.prim.gives == "float":
            return getattr(philox, name)(*inputs, value.dtype).to(self.held(value.dtype))
        return evaluate_prim(name, inputs)

    def cast(self, x: torch.Tensor, value: Value, rounds: bool) -> Any:
        held = self.held(value.dtype)
        if rounds and self.mode != "exact":
            return x.to(value.dtype).to(held)
        return x.to(held)

    def coordinate(self, value: Coordinate) -> Any:
        return self.axes(value.shape)[value.dim].expand(self.shape(value)).clone()

    def axes(self, shape: Sequence[Size]) -> list[torch.Tensor]:
        sizes = [self.size(size) for size in shape]
        return [
            torch.arange(n, device=self.device).reshape(-1, *(1,) * (len(sizes) - dim - 1))
            for dim, n in enumerate(sizes)
        ]

    def view(self, value: View) -> Any:
        return self.loaded(value, value.at, None)

    def gather(self, value: Gather) -> Any:
        return self.loaded(value, value.at, value.otherwise)

    def loaded(
        self, value: View | Gather, at: Sequence[Size | Value], otherwise: float | None
    ) -> Any:
        source = self.values[value.source]
        shape = self.shape(value)
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=source.dtype, device=source.device)
        known = {axis(dim): i for dim, i in enumerate(self.axes(value.shape))}
        places, inside = [], torch.ones(shape, dtype=torch.bool, device=self.device)
        for place, size in zip(at, source.shape, strict=True):
            where = self.values[place] if isinstance(place, Value) else None
            if where is None:
                where = torch.as_tensor(evaluated(place, {**self.symbols, **known}))
            where = where.to(self.device).expand(shape)
            inside = inside & (where >= 0) & (where < size)
            places.append(where)
        if otherwise is None:
            if not bool(inside.all()):
                raise IndexError(f"{value.name} reads outside of {value.source.name}")
            return source[tuple(places)] if places else source.expand(shape)
        if source.numel() == 0:
            return torch.full(shape, otherwise, dtype=source.dtype, device=source.device)
        safe = tuple(torch.where(inside, place, 0) for place in places)
        return source[safe].masked_fill(~inside, otherwise)

    def reduce(self, value: Reduce) -> Any:
        x, dims, keep = self.values[value.source], list(value.dims), value.keep
        if not dims:
            return torch.zeros((), dtype=torch.int64) if value.kind.startswith("arg") else x
        if value.parts:
            return torch.nn.functional.pad(x.sum(dims, keep).unsqueeze(-1), (0, value.parts - 1))
        if value.kind == "sum":
            return x.sum(dims, keep)
        if value.kind in ("argmax", "argmin"):
            return getattr(torch, value.kind)(x, dims[0], keep)
        if value.kind in ("amax", "amin"):
            if x.numel() == 0:
                return torch.full(
                    self.shape(value), _of_nothing(value.kind, x.dtype), dtype=x.dtype
                )
            return getattr(torch, value.kind)(x, dims, keep)
        for dim in reversed(dims):
            x = getattr(torch, value.kind)(x, dim, keep)
        return x

    def extern(self, value: Extern) -> list[Any]:
        args, kwargs = pytree.tree_map(self.argument, (value.args, value.kwargs))
        declared = value.target._schema.arguments
        given = {**dict(zip((a.name for a in declared), args, strict=False)), **kwargs}
        for each in declared:
            is_number = type(given.get(each.name)) in (int, float)
            if is_number and str(each.type).removeprefix("Optional[").startswith("Tensor"):
                given[each.name] = torch.tensor(given[each.name], dtype=torch.float64)
        first = [given.pop(a.name) for a in declared[: len(args)]]
        return pytree.tree_leaves(value.target(*first, **given))

    def argument(self, arg: Any) -> Any:
        if isinstance(arg, Value):
            made = self.values[arg]
            if isinstance(arg, Number) or (not arg.shape and arg.dtype == torch.float64):
                return made.item()
            return made if self.mode == "exact" else made.to(arg.dtype)
        if isinstance(arg, sympy.Basic):
            return evaluated(arg, self.symbols)
        if self.mode == "exact" and isinstance(arg, torch.dtype) and arg.is_floating_point:
            return torch.float64
        return arg

    def result(self, value: Result) -> Any:
        return self.values[value.extern][value.number].to(self.held(value.dtype))


def _of_nothing(kind: str, dtype: torch.dtype) -> float:
    """What the largest or the smallest of no elements is."""
    if dtype.is_floating_point:
        return -math.inf if kind == "amax" else math.inf
    return torch.iinfo(dtype).min if kind == "amax" else torch.iinfo(dtype).max


_SPELLED: dict[str, Callable[..., torch.Tensor]] = {
    "brief_exp": torch.exp,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder,
    "bit_not": torch.bitwise_not,
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "gelu_slope": lambda x: torch.ops.aten.gelu_backward(torch.ones_like(x), x),
    "gelu_tanh_slope": lambda x: torch.ops.aten.gelu_backward(
        torch.ones_like(x), x, approximate="tanh"
    ),
    "silu_slope": lambda x: torch.ops.aten.silu_backward(torch.ones_like(x), x),
}


def evaluate_prim(name: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A primitive by torch's own operation."""
    function = _SPELLED.get(name) or getattr(torch, name)
    result: torch.Tensor = function(*inputs)
    return result
