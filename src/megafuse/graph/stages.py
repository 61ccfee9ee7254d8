"""Reductions in the form that kernels have: along the last dimensions, with rows enough to share.

along the last dimensions           a kernel's row
along others as well                the last first, then the rest of what comes out
of everything                       rows first, then the rows' results
along others alone, or one long row the library, for want of a driver
"""

from __future__ import annotations

import torch

from megafuse.graph.affine import contiguous
from megafuse.graph.ir import Reduce, Size, Value
from megafuse.graph.plan import Buffer, Call, Tensor

aten = torch.ops.aten
_STAGED = ("sum", "prod", "amax", "amin", "any", "all")
# A row that one thread (or block) goes through alone, though others would have nothing to do.
LONGEST_ALONE = 1 << 16


class Stages:
    """The values, with reductions in stages; `calls` are those that the library does."""

    def __init__(self, values: list[Value]) -> None:
        self.values: list[Value] = []
        self.calls: list[Reduce] = []
        self._second: set[Value] = set()  # of few elements: what a first stage left
        for value in values:
            if isinstance(value, Reduce) and value.dims:
                self._add(value)
            self.values.append(value)

    def _add(self, value: Reduce) -> None:
        shape = value.source.shape
        wide = [d for d in range(len(shape)) if shape[d] != 1]
        dims = [d for d in value.dims if d in wide]
        last = []
        while wide and dims and dims[-1] == wide[-1]:
            last.insert(0, dims.pop())
            wide.pop()
        if not dims and wide:
            return  # a kernel's rows
        if not self._is_short(value):
            self.calls.append(value)

    def _is_short(self, value: Reduce) -> bool:
        size: Size = 1
        for dim in value.dims:
            size = size * value.source.shape[dim]
        return isinstance(size, int) and size <= LONGEST_ALONE


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
        last = dim == value.dims[0]
        shape = list(source.shape)
        if value.keep:
            shape[dim] = 1
        else:
            del shape[dim]
        to = made
        if not last:
            strides = contiguous(shape)
            to = Tensor(Buffer(value.dtype, tuple(shape), strides), tuple(shape), strides)
        args = (source, dim, value.keep)
        calls.append(Call(aten.prod.dim_int, args, {"dtype": value.dtype}, [to.buffer], value))
        source = to
    return calls
