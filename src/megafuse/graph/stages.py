"""Reductions in the form that kernels have: along the last dimensions, with rows enough to share.
Which are the last is memory's to say: the channels of a channels-last image are.

along the last dimensions           a kernel's row
sums along others, of everything    a sum of the kernel that has the terms (sums.py): what is left
                                    lies beside each other, or on both sides of what is summed; on a
                                    GPU one of everything is left in parts, which are a row then
other kinds along others as well    the last first, then the rest of what comes out
other kinds of everything           rows first, then the rows' results in one row
along others alone, or one long row the library: as a row with a stride it would read a cache
                                    line for each element, and one row is one thread's
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from megafuse.graph.affine import contiguous
from megafuse.graph.cost import Device, numel
from megafuse.graph.ir import Extern, Graph, Input, Number, Pointwise, Reduce, Value, View
from megafuse.graph.layouts import memory_order
from megafuse.graph.plan import Buffer, Call, Tensor

aten = torch.ops.aten
_STAGED = ("sum", "prod", "amax", "amin", "any", "all")
# A row of this many elements is gone through by one thread (or block) though others wait.
LONGEST_ALONE = 1 << 14
# The parts of a sum of everything on a GPU, a block each: about as many as run at a time. What
# adds them up also does what follows, such as the division of a mean: with it a loss is two
# launches, where it was three.
PARTS = 1024


class Stages:
    """The graph with reductions in stages; `calls` are those that the library does, `sums` those
    that kernels have beside their results. A sum is rounded once, to the dtype that it is cast to.

    Values are copied where one of their operands is not what it was.
    """

    def __init__(self, graph: Graph, live: list[Value], device: Device) -> None:
        self.device = device
        self.values: list[Value] = []
        self.calls: list[Value] = []
        self.sums: list[Value] = []
        self._read_once = _read_once(graph, live)
        self._made: dict[Value, Value] = {}
        for value in live:
            mine = self._copied(value)
            if isinstance(mine, Reduce) and mine.dims:
                mine = self._staged(mine)
            elif self._rounds_a_sum(value, mine):
                (total,) = mine.operands
                total.dtype, total.name, total.origin = mine.dtype, mine.name, mine.origin
                self._made[value] = total
                continue
            self._made[value] = mine
            self.values.append(mine)
        for value in self.values:
            if isinstance(value, Extern):
                value.results = tuple(self._made[r] for r in value.results if r in self._made)  # type: ignore[misc]
        outputs = [None if out is None else self._made[out] for out in graph.outputs]
        self.graph = replace(graph, outputs=outputs)

    def _copied(self, value: Value) -> Any:
        """The value over its operands as they are now."""
        if isinstance(value, (Input, Number)):
            return value
        if all(self._made[operand] is operand for operand in value.operands):
            return value if not isinstance(value, Extern) else copy.copy(value)
        mine = copy.copy(value)
        for field in fields(mine):
            old = getattr(mine, field.name)
            if field.name != "results" and isinstance(old, (Value, tuple, list, dict)):
                setattr(mine, field.name, pytree.tree_map_only(Value, self._made.get, old))
        return mine

    def _staged(self, value: Reduce) -> Reduce:
        last, others, kept = _parts(value, range(len(value.source.shape)))
        last_in_memory = not _parts(value, memory_order(value.source))[1]
        if kept and (last_in_memory or not others):
            return value
        count = numel(tuple(value.source.shape[d] for d in value.dims))
        if isinstance(count, int) and count <= LONGEST_ALONE:
            return value
        follows = not kept and _follows_a_reduction(value.source)
        if _can_be_summed(value) and not follows:
            if not kept and self.device == "cuda":
                return self._summed_in_parts(value)
            value = replace(value)
            self.sums.append(value)
            return value
        if value.kind in _STAGED and kept and last:
            value = self._split(value, last)
        elif value.kind in _STAGED and len(last) > 1 and not kept:
            return self._split(value, last[-1:])
        elif follows:
            return value
        self.calls.append(value)
        return value

    def _summed_in_parts(self, value: Reduce) -> Reduce:
        shape, name = (*value.shape, PARTS), f"{value.name}_in_parts"
        parts = replace(value, parts=PARTS, shape=shape, name=name)
        self.sums.append(parts)
        self.values.append(parts)
        return replace(value, source=parts, dims=(len(value.shape),), keep=False)

    def _rounds_a_sum(self, value: Value, mine: Value) -> bool:
        """Whether it only gives a sum that nobody else reads another dtype."""
        if not isinstance(mine, Pointwise) or mine.prim.name not in ("cast", "demote"):
            return False
        (before,), (total,) = value.operands, mine.operands
        narrower = mine.dtype.is_floating_point and mine.dtype.itemsize <= total.dtype.itemsize
        return total in self.sums and before in self._read_once and narrower

    def _split(self, value: Reduce, first: list[int]) -> Reduce:
        """The first stage keeps its dimensions, so that the second is along the same ones."""
        shape = tuple(1 if d in first else n for d, n in enumerate(value.source.shape))
        name = f"{value.name}_of_rows"
        stage = replace(value, dims=tuple(first), keep=True, shape=shape, name=name)
        self.values.append(stage)
        return replace(value, source=stage)


def _parts(value: Reduce, order: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """The reduced dimensions that are last in this order, the other reduced ones, and what is not
    reduced; ones left out."""
    order = [d for d in order if value.source.shape[d] != 1]
    kept = [d for d in order if d not in value.dims]
    end = order.index(kept[-1]) if kept else -1
    return order[end + 1 :], [d for d in order[: max(end, 0)] if d in value.dims], kept


def _can_be_summed(value: Reduce) -> bool:
    """Whether it is a sum of floats whose kept dimensions memory has beside each other, or whose
    summed ones it has between them."""
    if value.kind != "sum" or not value.dtype.is_floating_point:
        return False
    order = memory_order(value.source)
    last, others, kept = _parts(value, order)
    within = [d for d in others if order.index(d) > order.index(kept[0])]
    if not within:
        return True
    between = order[order.index(within[0]) : order.index(within[-1])]
    return not last and within == others and not any(d in kept for d in between)


def _read_once(graph: Graph, live: list[Value]) -> set[Value]:
    """The values that one other reads, and that are no outputs."""
    readers = Counter(operand for value in live for operand in value.operands)
    readers.update(out for out in graph.outputs if out is not None)
    return {value for value, count in readers.items() if count == 1}


def _follows_a_reduction(value: Value) -> bool:
    """Whether it is a few numbers already, a loss of each row say: reductions are right below."""
    below = [value]
    for _ in range(8):
        if any(isinstance(v, Reduce) for v in below):
            return True
        steps = [v for v in below if isinstance(v, (Pointwise, View))]
        below = [operand for v in steps for operand in v.operands][:8]
    return False


def library_call(value: Reduce, source: Tensor, made: Tensor) -> list[Call]:
    """The operations of ATen that reduce `source` so."""
    dims, keep = list(value.dims), value.keep
    if value.kind == "sum":
        dtype = {"dtype": value.dtype}
        return [Call(aten.sum.dim_IntList, (source, dims, keep), dtype, [made.buffer], value)]
    several = {"amax": aten.amax.default, "amin": aten.amin.default}
    several |= {"any": aten.any.dims, "all": aten.all.dims}
    if value.kind in several:
        return [Call(several[value.kind], (source, dims, keep), {}, [made.buffer], value)]
    if value.kind in ("argmax", "argmin"):
        target = getattr(aten, value.kind).default
        return [Call(target, (source, dims[0], keep), {}, [made.buffer], value)]
    return _products(value, source, made)


def _products(value: Reduce, source: Tensor, made: Tensor) -> list[Call]:
    """prod takes one dimension at a time."""
    calls = []
    for dim in reversed(value.dims):
        shape = list(source.shape)
        if value.keep:
            shape[dim] = 1
        else:
            del shape[dim]
        to = made
        if dim != value.dims[0]:
            strides = contiguous(shape)
            to = Tensor(Buffer(value.dtype, tuple(shape), strides), tuple(shape), strides)
        args = (source, dim, value.keep)
        calls.append(Call(aten.prod.dim_int, args, {"dtype": value.dtype}, [to.buffer], value))
        source = to
    return calls
