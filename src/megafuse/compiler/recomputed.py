"""What the backward computes again rather than have the forward save it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from megafuse.compiler.compile import Compiled
from megafuse.compiler.labels import saved
from megafuse.graph.ir import Constant, Graph, Input, Number, Value, View


def recomputed(made: Compiled) -> list[str]:
    """Names of the values that both passes compute from the same arguments in the same way."""
    if made.backward is None:
        return []
    forward, backward = made.forward[0], made.backward[0]
    known: dict[Value, Hashable] = {}
    theirs = {_key(v, known) for v in forward.values}
    kept = saved(forward, made.captured)
    for value, (kind, which) in zip(backward.inputs, made.captured.backward_takes, strict=False):
        what = kept[which] if kind == "saved" else None
        known[value] = _key(what, known) if what is not None else value
    return list(dict.fromkeys(v.name for v in _work(backward) if _key(v, known) in theirs))


def _work(graph: Graph) -> list[Value]:
    free = (Input, Number, Constant, View)
    return [value for value in graph.values if not isinstance(value, free)]


def _key(value: Value, known: dict[Value, Hashable]) -> Hashable:
    """Equal for values that are computed alike; graphs are in order, so this goes one step deep."""
    if value not in known:
        if isinstance(value, (Input, Number)):
            known[value] = value
            return value
        besides = {"name", "origin", "dtype", "shape", "results"}
        parts = [getattr(value, f.name) for f in fields(value) if f.name not in besides]
        made = (
            type(value).__name__,
            value.dtype,
            value.shape,
            *(_part(part, known) for part in parts),
        )
        known[value] = hash(repr(made))
    return known[value]


def _part(part: object, known: dict[Value, Hashable]) -> Hashable:
    if isinstance(part, Value):
        return _identified(_key(part, known))
    if isinstance(part, (list, tuple)):
        return tuple(_part(item, known) for item in part)
    return repr(part)


def _identified(key: Hashable) -> Hashable:
    return id(key) if isinstance(key, Value) else key
