"""Compiles a Body for this CPU and calls it on tensors, with words as kernels/pointwise.h says."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from codegen.bodies import DTYPES
from megafuse.codegen.body import Body
from megafuse.codegen.generated import LONG, SHORT, generated, source
from megafuse.runtime import build


@dataclass(frozen=True)
class Number:
    """An operand without memory: walk 'v'."""

    value: float


@dataclass(frozen=True)
class Index:
    """An operand that is start + the sum of coordinate * stride: walk 'i'. Outermost first."""

    start: int
    strides: tuple[int, ...]


Given = Tensor | Number | Index


def run(
    body: Body,
    inputs: Sequence[Given],
    shape: Sequence[int],
    scalars: Sequence[float | int] = (),
    *,
    across: bool = False,
    outputs: Sequence[Tensor] | None = None,
    parts: int = 1,
    short: bool | None = None,
    summed: Sequence[int] = (),
) -> list[Tensor]:
    """The outputs of `body` over an index space of this shape; the inputs broadcast into it.

    `short`: rows side by side; None where they are short. `summed` outputs are summed over rows, in
    fp64, with a row of partial sums for each part.
    """
    outputs = list(outputs or [])
    if not outputs:
        outputs = [poisoned(shape, term.dtype) for term in body.outputs]
        outputs += [poisoned([*shape[:-1], 1], term.dtype) for term in body.row_outputs]
    for i in summed:
        outputs[i] = torch.zeros(parts, shape[-1], dtype=torch.float64)
    operands = [*outputs, *inputs]
    strides = [
        _strides(given, shape) if i not in summed else () for i, given in enumerate(operands)
    ]
    for i in summed:
        strides[i] = (*([0] * (len(shape) - 2)), shape[-1], 1)
    made = len(outputs)
    walks = [
        "w" if made > i >= len(body.outputs) else _walk(given, stride, shape, across and i >= made)
        for i, (given, stride) in enumerate(zip(operands, strides, strict=True))
    ]
    for i in summed:
        walks[i] = "r"
    if short is None:
        short = body.row_wise and shape[-1] <= SHORT
    kernel = generated(
        body,
        "cpu",
        len(shape),
        tuple(walks[:made]),
        tuple(walks[made:]),
        across=across,
        short_rows=short,
        long_rows=body.row_wise and shape[-1] >= LONG,
        sums="Double",
    )
    library = ctypes.CDLL(str(build.cpu_object(source(kernel), body.name)))
    numel = 1
    for size in shape:
        numel *= size
    words = [_word(given, body, i - made) for i, given in enumerate(operands)]
    words += [numel, *reversed(shape[1:]), *([0] * (len(shape) - 1))]
    for stride in strides:
        words += reversed(stride)
    words += [_bits(value) for value in scalars]
    packed = (ctypes.c_uint64 * (len(words) + 1))(*(word % 2**64 for word in words))
    total = numel // shape[-1] if body.row_wise and shape[-1] else numel
    if body.row_wise and not shape[-1]:
        total = 0
    edges = [total * part // parts for part in range(parts + 1)]
    for part, (begin, end) in enumerate(itertools.pairwise(edges)):
        numbers = [ctypes.c_int64(number) for number in (begin, end, part)]
        getattr(library, kernel.symbol)(packed, *numbers)
    return [out.sum(0) if i in summed else out for i, out in enumerate(outputs)]


def poisoned(shape: Sequence[int], dtype: str) -> Tensor:
    """Memory that nobody wrote to."""
    out = torch.empty(tuple(shape), dtype=DTYPES[dtype])
    out.view(torch.uint8).fill_(0 if dtype == "Bool" else 0xAB)
    return out


def _strides(given: Given, shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(given, Number):
        return (0,) * len(shape)
    if isinstance(given, Index):
        return given.strides
    if given.shape[-1] == 1 and shape[-1] != 1:  # a row output, or broadcast along the row
        return (*given.expand(*shape[:-1], 1).stride()[:-1], 0)
    return given.expand(tuple(shape)).stride()


def _walk(given: Given, stride: Sequence[int], shape: Sequence[int], across: bool) -> str:
    if isinstance(given, Number):
        return "v"
    if isinstance(given, Index):
        return "i"
    if across:
        whole = torch.empty(tuple(shape), device="meta").stride()
        return "c" if tuple(stride) == whole else "e"
    return {0: "b", 1: "c"}.get(stride[-1], "s")


def _word(given: Given, body: Body, i: int) -> int:
    if isinstance(given, Index):
        return given.start
    if isinstance(given, Number):
        is_float = DTYPES[body.inputs[i]].is_floating_point
        return _bits(float(given.value)) if is_float else int(given.value)
    return given.data_ptr()


def _bits(value: float | int) -> int:
    """A double's bits, or an integer as it is."""
    return struct.unpack("<q", struct.pack("<d", value))[0] if isinstance(value, float) else value
