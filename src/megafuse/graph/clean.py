"""Passes that make a graph smaller and keep what it means: constants, views, twins, dead values.

Each takes a Graph and returns another, validated; values are copied, never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import sympy
import torch

from megafuse.graph.collectives import is_collective
from megafuse.graph.coordinates import identity, same_shape, simplified, within
from megafuse.graph.interpret import evaluate_prim
from megafuse.graph.ir import (
    Constant,
    Extern,
    Gather,
    Graph,
    Input,
    Number,
    Pointwise,
    Result,
    Value,
    View,
    axis,
)
from megafuse.graph.lowering.builder import broadcast
from megafuse.graph.validate import validate

Step = Callable[[Value], Value | None]  # something simpler, or None


def clean(graph: Graph) -> Graph:
    """All passes, as often as they find something."""
    while True:
        before = len(graph.values)
        graph = dead(twins(simpler(graph)))
        if len(graph.values) == before:
            return graph


def rewrite(graph: Graph, step: Callable[[Value], Value]) -> Graph:
    """Each value, its operands rewritten already, becomes what step makes of it: the copy itself, a
    value from before, or a new one, which takes the name and the place of the old. What that is
    made of may be new as well: the step names it."""
    made: dict[Value, Value] = {}
    values: dict[Value, None] = {}
    for value in graph.values:
        mine = _copied(value, made)
        result = step(mine)
        if result is not mine and result not in values:
            result.name, result.origin = mine.name, mine.origin
        made[value] = result
        _add(result, values)
    _find_results(values)
    inputs = [made[value] for value in graph.inputs]
    outputs = [None if out is None else made[out] for out in graph.outputs]
    new = Graph(inputs, list(values), outputs, graph.strides, graph.constants)  # type: ignore[arg-type]
    return validate(new)


def _add(value: Value, values: dict[Value, None]) -> None:
    """After what it is made of."""
    for operand in value.operands:
        if operand not in values:
            _add(operand, values)
    values[value] = None


def _find_results(values: Iterable[Value]) -> None:
    """Tells each Extern of its results, which say themselves whose they are."""
    results: dict[Extern, list[Result]] = {v: [] for v in values if isinstance(v, Extern)}
    for value in values:
        if isinstance(value, Result):
            results[value.extern].append(value)
    for extern, found in results.items():
        extern.results = tuple(found)


# No values are in these; results come later, and say so themselves.
_WITHOUT_VALUES = frozenset({"results", "name", "origin", "dtype", "shape", "prim"})


def _copied(value: Value, made: dict[Value, Value]) -> Any:
    mine = copy.copy(value)
    for field in fields(mine):
        if field.name not in _WITHOUT_VALUES:
            setattr(mine, field.name, _replaced(getattr(mine, field.name), made))
    return mine


def _replaced(part: Any, made: dict[Value, Value]) -> Any:
    if isinstance(part, Value):
        return made[part]
    if isinstance(part, (tuple, list)):
        return type(part)(_replaced(item, made) for item in part)
    if isinstance(part, dict):
        return {key: _replaced(item, made) for key, item in part.items()}
    return part


# Simpler values


def simpler(graph: Graph) -> Graph:
    """Folds constants, joins views, drops casts, factors and expansions that do nothing."""
    stored = {value.name for value in _stored(graph)}

    def joined(value: Value) -> Value | None:
        """Whoever needs a load that is stored reads it there. (Labels that are shifted before a
        loss: two divisions for each of 50,257 logits, else.)"""
        source = value.source if isinstance(value, View) else None
        return None if isinstance(source, Gather) and source.name in stored else _joined(value)

    def step(value: Value) -> Value:
        for attempt in (_no_cast, _folded, _no_factor, _without_expansions, joined, _no_mask):
            found = attempt(value)
            if found is not None:
                return found
        return value

    return rewrite(graph, step)


def _stored(graph: Graph) -> Iterator[Value]:
    """What the library takes, and results."""
    for value in graph.values:
        if isinstance(value, Extern):
            yield from value.operands
    yield from (out for out in graph.outputs if out is not None)


def _no_cast(value: Value) -> Value | None:
    """cast(x) where x is of the dtype, and cast(cast(x)) where the first lost nothing."""
    if not isinstance(value, Pointwise) or value.prim.name != "cast":
        return None
    (x,) = value.inputs
    if x.dtype == value.dtype:
        return x
    if isinstance(x, Pointwise) and x.prim.name == "cast":
        (first,) = x.inputs
        if _holds(x.dtype, first.dtype):
            if first.dtype == value.dtype:
                return first
            return Pointwise(value.prim, (first,), dtype=value.dtype, shape=value.shape)
    return None


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of the one dtype is one of the other's."""
    if wide == narrow or narrow == torch.bool:
        return True
    if wide == torch.bool or (narrow.is_floating_point and not wide.is_floating_point):
        return False
    return wide.itemsize > narrow.itemsize and torch.promote_types(wide, narrow) == wide


def _folded(value: Value) -> Value | None:
    """A primitive of numbers that are known. Floats in float64, so that nothing is rounded."""
    if not isinstance(value, Pointwise):
        return None
    numbers = []
    for operand in value.inputs:
        if not isinstance(operand, Constant) or isinstance(operand.value, sympy.Basic):
            return None
        dtype = torch.float64 if operand.dtype.is_floating_point else operand.dtype
        numbers.append(torch.tensor(operand.value, dtype=dtype))
    held = torch.float64 if value.dtype.is_floating_point else value.dtype
    if value.prim.name in ("cast", "demote"):
        result = numbers[0].to(held)
    else:
        if value.prim.name in ("floor_div", "trunc_div", "mod", "fmod") and not numbers[1]:
            return None
        result = evaluate_prim(value.prim.name, numbers).to(held)
    return Constant(result.item(), dtype=value.dtype, shape=())


def _no_factor(value: Value) -> Value | None:
    """x times 1, and x over 1: softplus and its like have a factor that is 1 as a rule."""
    if not isinstance(value, Pointwise) or value.prim.name not in ("mul", "div"):
        return None
    x, factor = value.inputs
    if value.prim.name == "mul" and isinstance(x, Constant):
        x, factor = factor, x
    if not isinstance(factor, Constant) or isinstance(factor.value, sympy.Basic):
        return None
    is_all = x.dtype == value.dtype and same_shape(x.shape, value.shape)
    return x if factor.value == 1 and is_all else None


def _without_expansions(value: Value) -> Value | None:
    """A primitive broadcasts its operands itself."""
    if not isinstance(value, Pointwise):
        return None
    inputs = tuple(_unexpanded(operand) for operand in value.inputs)
    if inputs == value.inputs:
        return None
    if not same_shape(broadcast(*(x.shape for x in inputs)), value.shape):
        return None
    return Pointwise(value.prim, inputs, dtype=value.dtype, shape=value.shape)


def _unexpanded(value: Value) -> Value:
    if not isinstance(value, View) or len(value.source.shape) > len(value.shape):
        return value
    ahead = len(value.shape) - len(value.source.shape)
    for dim, (place, size) in enumerate(zip(value.at, value.source.shape, strict=True), ahead):
        if not (size == 1 or (place == axis(dim) and size == value.shape[dim])):
            return value
    return value.source


def _joined(value: Value) -> Value | None:
    """A view of a view, or of a load."""
    if not isinstance(value, View):
        return None
    if value.at == identity(value.shape) and same_shape(value.shape, value.source.shape):
        return value.source
    inner = value.source
    if not isinstance(inner, (View, Gather)) or any(isinstance(a, Value) for a in inner.at):
        return None
    places = {axis(dim): sympy.sympify(place) for dim, place in enumerate(value.at)}
    at = simplified([sympy.sympify(a).xreplace(places) for a in inner.at], value.shape)
    if isinstance(inner, Gather):
        return Gather(inner.source, at, inner.otherwise, dtype=value.dtype, shape=value.shape)
    return View(inner.source, at, dtype=value.dtype, shape=value.shape)


def _no_mask(value: Value) -> Value | None:
    """A load that is within bounds everywhere is a view."""
    if not isinstance(value, Gather) or any(isinstance(a, Value) for a in value.at):
        return None
    at = [a for a in value.at if not isinstance(a, Value)]
    if all(within(a, value.shape, size) for a, size in zip(at, value.source.shape, strict=True)):
        return View(value.source, tuple(at), dtype=value.dtype, shape=value.shape)
    return None


# Twins


def twins(graph: Graph) -> Graph:
    """One value for all that are made in the same way from the same operands."""
    known: dict[Hashable, Value] = {}

    def step(value: Value) -> Value:
        key = _key(value)
        return value if key is None else known.setdefault(key, value)

    return rewrite(graph, step)


def _key(value: Value) -> Hashable:
    if isinstance(value, (Input, Number)):
        return None
    if isinstance(value, Extern) and _differs(value.target):
        return None
    parts = [
        getattr(value, field.name)
        for field in fields(value)
        if field.name not in ("name", "origin", "results")
    ]
    return (type(value), *map(_frozen, parts))


def _frozen(part: Any) -> Hashable:
    if isinstance(part, (list, tuple)):
        return tuple(map(_frozen, part))
    if isinstance(part, dict):
        return tuple((key, _frozen(item)) for key, item in part.items())
    if isinstance(part, float):
        return "float", part.hex()  # −0.0 is not 0.0, and NaN is NaN
    return type(part).__name__, part


def _differs(target: Any) -> bool:
    """Whether a second call gives something else, or has an effect."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if is_collective(target):
        return True
    return torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable


# The dead


def has_effect(value: Value) -> bool:
    """Whether it is run for what it does: it writes, gives nothing, as a check does, or other ranks
    wait for it."""
    target = getattr(value, "target", None)
    schema = getattr(target, "_schema", None)
    writes = schema is not None and (schema.is_mutable or not schema.returns)
    return writes or is_collective(target)


def dead(graph: Graph) -> Graph:
    """Without the values that no output needs. Inputs stay."""
    alive: set[Value] = {out for out in graph.outputs if out is not None}
    for value in reversed(graph.values):
        if has_effect(value):
            alive.add(value)
        if value in alive:
            alive.update(value.operands)
            if isinstance(value, Extern):
                alive.update(value.results)
    kept = [v for v in graph.values if v in alive or isinstance(v, (Input, Number))]
    return validate(Graph(graph.inputs, kept, graph.outputs, graph.strides, graph.constants))
