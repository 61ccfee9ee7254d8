"""Which values must lie in memory, and how: outputs, and what is not read by generated kernels."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from typing import Any

import sympy

from megafuse.graph.affine import (
    Coordinates,
    affine,
    contiguous,
    flat,
    mapped,
    same_strides,
)
from megafuse.graph.coordinates import identity, remembered, same
from megafuse.graph.ir import (
    Constant,
    Coordinate,
    Extern,
    Gather,
    Graph,
    Input,
    Number,
    Result,
    Size,
    Value,
    View,
    axis,
)
from megafuse.graph.reads import is_memory
from megafuse.graph.signs import may_be_negative

Strides = tuple[Size, ...]
_MOST_TURNED = 4  # dimensions: 24 orders


def base_of(value: Value) -> tuple[Value, Coordinates]:
    """What a view is of in the end, and where in that."""
    at: Coordinates = identity(value.shape)
    shape = value.shape
    while isinstance(value, View):
        at = mapped(value.at, at, shape)
        value = value.source
    return value, at


def is_free(value: Value) -> bool:
    """Out of nothing: no memory holds it unless somebody asks."""
    return isinstance(value, (Constant, Number, Coordinate))


def tensor_arguments(value: Extern) -> Iterator[Value]:
    """The values that the operation takes as tensors (others it takes as numbers)."""
    schema = getattr(value.target, "_schema", None)
    listed = schema.arguments if schema is not None else []
    kinds = {argument.name: str(argument.type) for argument in listed}
    for k, arg in enumerate(value.args):
        kind = str(listed[k].type) if k < len(listed) else "Tensor"
        yield from _tensors_in(arg, kind)
    for name, arg in value.kwargs.items():
        yield from _tensors_in(arg, kinds.get(name, "Tensor"))


def _tensors_in(arg: Any, kind: str) -> Iterator[Value]:
    if isinstance(arg, Value):
        if "Tensor" in kind:
            yield arg
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _tensors_in(item, kind)


def _shared(strides: Strides, shape: tuple[Size, ...]) -> set[int]:
    """The dimensions along which elements share their memory: no kernel writes such."""
    sizes = enumerate(zip(strides, shape, strict=True))
    return {dim for dim, (stride, size) in sizes if stride == 0 and size != 1}


class Storage:
    """`strides` has every value that must be stored, with how it must lie (None: as suits).

    `fresh` are the outputs that must not be views of arguments: eager made copies of these.
    `expanded` are the outputs whose elements share memory: what is stored has size 1 there, and
    the output is a view of it, of this shape and these strides.
    """

    def __init__(self, graph: Graph, live: list[Value], fresh: Collection[int]) -> None:
        self.strides: dict[Value, Strides | None] = {}
        self.expanded: dict[int, tuple[tuple[Size, ...], Strides]] = {}
        self.outputs(graph, live, fresh)
        for value in live:
            if isinstance(value, Extern):
                for arg in tensor_arguments(value):
                    self.argument(arg)
            elif isinstance(value, Gather) and any(isinstance(a, Value) for a in value.at):
                base, _ = base_of(value.source)
                if not is_memory(base) and not is_free(base):
                    self.strides.setdefault(base, None)

    def outputs(self, graph: Graph, live: list[Value], fresh: Collection[int]) -> None:
        views: set[Value] = set()  # that are right as they are, for some output
        others: list[tuple[int, Value, Strides]] = []
        for place, (value, strides) in enumerate(zip(graph.outputs, graph.strides, strict=True)):
            if value is None or strides is None:
                continue
            if self.lies(value, strides, place in fresh):
                views.add(value)
            else:
                others.append((place, value, strides))
        for place, value, strides in others:
            shared = _shared(strides, value.shape)
            if shared:
                self.expanded[place] = value.shape, strides
            elif not is_memory(value) and value not in views and self.demand(value, strides):
                continue
            copy = _copy(value, shared)
            self.strides[copy] = strides
            live.append(copy)
            graph.outputs[place] = copy

    def lies(self, value: Value, strides: Strides, fresh: bool) -> bool:
        """Whether the output is a view, that lies so, of what is or will be stored."""
        base, at = base_of(value)
        if is_free(base):
            return False
        if isinstance(base, (Input, Result)):
            seen = view_strides(base.strides, value, at)
            copied = isinstance(base, Input) and fresh
            return not copied and seen is not None and same_strides(seen[0], strides, value.shape)
        known = self.strides.get(base)
        choices = [known] if known is not None else _layouts(base, value, at, strides)
        for layout in choices:
            seen = view_strides(layout, value, at)
            if seen is not None and same_strides(seen[0], strides, value.shape):
                self.strides[base] = layout
                return True
        return False

    def demand(self, value: Value, strides: Strides) -> bool:
        """Stored itself, unless it is already and lies otherwise."""
        known = self.strides.get(value)
        if known is None:
            self.strides[value] = known = strides
        return same_strides(known, strides, value.shape)

    def argument(self, value: Value) -> None:
        base, at = base_of(value)
        if is_free(base):  # one number for all of it, where that is all it is
            self.strides.setdefault(base if not base.shape else value, None)
            return
        layout: Strides = contiguous(base.shape)
        if isinstance(base, (Input, Result)):
            layout = base.strides
        elif self.strides.get(base) is not None:
            layout = self.strides[base] or layout
        if view_strides(layout, value, at) is None:
            turned = None if is_memory(base) or self.strides.get(base) else _turned(value, at, base)
            if turned is None:
                self.strides.setdefault(value, None)
            else:
                self.strides[base] = turned
        elif not is_memory(base):
            self.strides.setdefault(base, None)
            if self.strides[base] is None and not _is_view_of_any_layout(value, at, base):
                self.strides[base] = layout


def _copy(value: Value, shared: set[int]) -> View:
    """A value of its own, with size 1 along the shared dimensions."""
    at = tuple(0 if d in shared else place for d, place in enumerate(identity(value.shape)))
    shape = tuple(1 if d in shared else size for d, size in enumerate(value.shape))
    copy = View(value, at, dtype=value.dtype, shape=shape)
    copy.name, copy.origin = f"{value.name}_copy", value.origin
    return copy


def _layouts(base: Value, value: Value, at: Coordinates, strides: Strides) -> list[Strides]:
    """How the base could lie so that its view lies as demanded: as the view does, if this has all
    of the base, with dimensions in another order."""
    found = [contiguous(base.shape)]
    places = {axis(dim): dim for dim in range(len(strides))}
    turned: list[Size] = []
    for place, size in zip(at, base.shape, strict=True):
        dim = places.get(place)
        if dim is not None and same(value.shape[dim], size):
            turned.append(strides[dim])
        elif size == 1:
            turned.append(0)
        else:
            return found
    return [tuple(turned), *found]


def _turned(value: Value, at: Coordinates, base: Value) -> Strides | None:
    """How the base could lie, with its dimensions in another order, so that the value is a view of
    it. (Heads that are joined again, and the transpose of that, which two products of a backward
    take: of Llama's queries one kernel wrote each of these, 34 and 88 us for 8 MB on an H200.)"""
    ones = [d for d, size in enumerate(base.shape) if size == 1]
    others = [d for d in range(len(base.shape)) if d not in ones]
    if len(others) > _MOST_TURNED:
        return None
    for turned in itertools.permutations(others):
        order = (*ones, *turned)
        dense = contiguous([base.shape[d] for d in order])
        strides = tuple(dense[order.index(d)] for d in range(len(order)))
        if view_strides(strides, value, at) is not None:
            return strides
    return None


def _is_view_of_any_layout(value: Value, at: Coordinates, base: Value) -> bool:
    """A transpose is one, however its base lies; a reshape that joins dimensions is not."""
    return _any_layout_does(at, len(base.shape), value.shape)


@remembered
def _any_layout_does(at: Coordinates, base: int, shape: tuple[Size, ...]) -> bool:
    strides = tuple(sympy.Dummy(integer=True, positive=True) for _ in range(base))
    return _strides_of(strides, shape, at) is not None


def view_strides(strides: Strides, value: Value, at: Coordinates) -> tuple[Strides, Size] | None:
    """Strides and offset of a view of memory that lies so; None if no strides say that."""
    return _strides_of(strides, value.shape, at)


def _strides_of(
    strides: Strides, shape: tuple[Size, ...], at: Coordinates
) -> tuple[Strides, Size] | None:
    axes = [axis(dim) for dim in range(len(shape))]
    found = affine(flat(at, strides), axes)
    if found is None or may_be_negative(found[1], (*shape, *_of_wide(strides, at))):
        return None  # tensors have no negative strides
    return tuple(found[1]), found[0]


def _of_wide(strides: Strides, at: Coordinates) -> list[Size]:
    """Those of the dimensions that the view goes along."""
    pairs = zip(strides, at, strict=True)
    return [step for step, place in pairs if step != 0 and sympy.sympify(place).free_symbols]
