"""One element of each row is gathered from what lies in memory, not from what is computed of it.

    gather(f(a, r), i)              → f(gather(a, i), r), r being the same along a row

A loss picks the logarithm of one probability of each row. Where the library is asked for it, a
kernel writes all of them first: of 16 Mi bfloat16 logits 64 MB, for a number a row. So the library
picks one logit of each row, before any kernel runs, and its logarithm is computed with the row's
others. It is still the library that gathers, and raises for an index that is out of bounds.
"""

from __future__ import annotations

import torch

from megafuse.graph.affine import Coordinates, contiguous
from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import identity, same
from megafuse.graph.ir import Extern, Graph, Input, Result, Value, View
from megafuse.graph.patterns.picked import Picked, Place
from megafuse.graph.reads import is_memory
from megafuse.graph.storage import base_of, tensor_arguments, view_strides

GATHER = torch.ops.aten.gather.default
_MOST_LEAVES = 2  # gathers in place of one: each is a launch


def with_early_gathers(graph: Graph) -> Graph:
    """Changes the gathers whose source is in memory for nobody else."""
    needed = {out for out in graph.outputs if out is not None}
    externs = [v for v in graph.values if isinstance(v, Extern)]
    needed.update(arg for v in externs if not _picks_one(v) for arg in tensor_arguments(v))
    bases = {base_of(value)[0] for value in needed}
    late = {v for v in externs if _picks_one(v) and base_of(v.args[0])[0] not in bases}
    if not late:
        return graph
    old = iter(graph.values)

    def step(mine: Value) -> Value:
        value = next(old)
        if isinstance(value, Result) and value.extern in late and isinstance(mine, Result):
            return _EarlyGather(mine).made() or mine
        return mine

    return rewrite(graph, step)


def _picks_one(value: Extern) -> bool:
    """Whether it is a gather of one element along its dimension, from what is computed."""
    if value.target is not GATHER:
        return False
    source, dim, index = value.args[:3]
    if not source.shape or len(source.shape) != len(index.shape):
        return False
    one = index.shape[dim] == 1 and not same(source.shape[dim], 1)
    return one and not is_memory(base_of(source)[0])


class _EarlyGather(Picked):
    """A gather of the library's on its way to memory."""

    def __init__(self, mine: Result) -> None:
        source, dim, index = mine.extern.args[:3]
        super().__init__(index, int(dim), source.shape[dim], mine)
        self.source: Value = source
        self.leaves: dict[Place, Value] = {}

    def made(self) -> Value | None:
        """The value in place of the gather's result; None where that is how it must be."""
        found = self.at(self.source, identity(self.domain))
        return found if self.leaves else None

    def loaded(self, value: Input | Result, at: Coordinates) -> Value | None:
        leaf = Place(value, at)
        if leaf not in self.leaves:
            seen = View(value, at, dtype=value.dtype, shape=self.domain)
            several = len(self.leaves) >= _MOST_LEAVES
            if several or view_strides(value.strides, seen, at) is None:
                return None
            whole = at == identity(self.domain) and self.domain == tuple(value.shape)
            source = value if whole else self.named(seen)
            shape = self.index.shape
            args = (source, self.dim, self.index)
            call = self.named(Extern(GATHER, args, {}, dtype=value.dtype, shape=shape))
            made = Result(call, 0, contiguous(shape), dtype=value.dtype, shape=shape)
            self.leaves[leaf] = self.named(made)
        return self.leaves[leaf]
