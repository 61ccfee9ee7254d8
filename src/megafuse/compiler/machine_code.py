"""A kernel of a plan as CUDA source for certain sizes: what a launch with aligned tensors runs.

The host runtime decides the same in C++ when it plans a launch (runtime/host/core/space.h): this is
for looking at kernels where there is no GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from megafuse.codegen.generated import Generated, generated
from megafuse.codegen.generated import source as unit
from megafuse.codegen.row_launch import GpuRow
from megafuse.codegen.variant import BYTES, FIRSTS, SECONDS, pitch
from megafuse.graph.plan import Kernel, Operand
from megafuse.runtime.generated import cuda_launch
from megafuse.runtime.nvrtc import Used, used
from megafuse.runtime.sources import KERNELS

_LEAST_SHIFTED = 64  # columns: kLeastShifted of runtime/host/core/rows.h


def cuda_kernel(
    step: Kernel, symbols: Mapping[sympy.Symbol, Any], clusters: bool = True
) -> Generated:
    """For these sizes; `clusters`: whether the GPU has clusters of blocks."""
    body = step.body
    results = [*step.outputs, *step.sums, *step.row_outputs]
    shape = [_number(size, symbols) for size in step.shape]
    operands = [*results, *step.inputs]
    strides = [[_number(s, symbols) for s in operand.strides] for operand in operands]
    known = [
        _summed(body.row_wise, shape, strides[i]) for i in range(len(step.outputs), len(results))
    ]
    known[len(step.sums) :] = ["w"] * len(step.row_outputs)
    for i, walk in enumerate(known, len(step.outputs)):
        if walk == "g":  # finds its segment without strides
            strides[i] = [0] * len(shape)
    sizes, strides = _merged(shape, strides, body.row_wise)
    written, read = slice(len(step.outputs)), slice(len(results), None)
    walks = [_walk(*each) for each in zip(operands[written], strides[written], strict=True)]
    walks += known + [_walk(*each) for each in zip(operands[read], strides[read], strict=True)]
    family = _sum_family(step, sizes, strides[len(step.outputs)]) if step.sums else ""
    dtypes = [term.dtype for term in (*body.outputs, *body.row_outputs)] + list(body.inputs)
    widths = [BYTES[dtype] for dtype in dtypes]
    across = False
    if body.row_wise:
        vector, across = _row_vector(sizes, strides, walks, widths, len(results))
    else:
        if not step.sums:
            starts = [_number(operand.offset, symbols) for operand in operands]
            _set_pairs(walks, operands, starts, strides, len(results))
        vector = _vector(sizes, strides, walks, widths)
    vectors = -(-sizes[-1] // vector)
    launch = cuda_launch(body, tuple(walks), GpuRow(vectors, vector, across, not across, clusters))
    return generated(
        body,
        "cuda",
        3 if family else len(sizes),
        tuple(walks[: len(results)]),
        tuple(walks[read]),
        vector=vector,
        across=across,
        launch=launch,
        sums="Double" if "Double" in dtypes[len(step.outputs) : len(body.outputs)] else "Float",
        sum_family=family,
    )


def compiled_for(step: Kernel, symbols: Mapping[sympy.Symbol, Any], arch: str) -> Used:
    """Registers, spills and instructions on `arch`; raises CompileError."""
    made = cuda_kernel(step, symbols, int(re.sub(r"\D", "", arch)) >= 90)
    return used(unit(made), arch, [KERNELS], contract=made.contracts)


def _number(size: Any, symbols: Mapping[sympy.Symbol, Any]) -> int:
    return int(size.subs(symbols) if isinstance(size, sympy.Basic) else size)


def _merged(
    shape: Sequence[int], strides: list[list[int]], row_wise: bool
) -> tuple[list[int], list[list[int]]]:
    """Without dimensions of size 1, and neighbours as one where all operands allow it. A row stays
    apart, and there is at least one dimension (of rows: two)."""
    least = 2 if row_wise else 1
    outer = len(shape) - 1 if row_wise else len(shape)
    dims: list[int] = []
    sizes: list[int] = []
    for d in range(len(shape)):
        if d < outer and shape[d] == 1:
            continue
        fits = dims and d < outer and all(s[dims[-1]] == s[d] * shape[d] for s in strides)
        if fits:
            dims[-1], sizes[-1] = d, sizes[-1] * shape[d]
        else:
            dims.append(d)
            sizes.append(shape[d])
    if not sizes and not row_wise:  # one element: any stride will do
        return [1], [[1] for _ in strides]
    missing = max(least - len(sizes), 0)
    kept = [[0] * missing + [stride[d] for d in dims] for stride in strides]
    return [1] * missing + sizes, kept


def _summed(row_wise: bool, shape: Sequence[int], strides: Sequence[int]) -> str:
    """The walk of a sum: 'g' where it keeps rows apart (plan_rows of runtime/host/graph/kernel.h,
    for segments that are not too short)."""
    outer = zip(shape[:-1], strides, strict=False)
    return "g" if row_wise and any(n != 1 and s != 0 for n, s in outer) else "r"


def _sum_family(step: Kernel, sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Of a kernel that is not row-wise: by what is last, kept or summed, and first."""
    if step.body.row_wise:
        return ""
    if strides[-1] == 0 or sizes[-1] == 1:
        return "sum_rows"
    return "sum_segments" if strides[0] != 0 and 0 in strides else "sum_columns"


def _walk(operand: Operand, strides: Sequence[int]) -> str:
    if operand.buffer is None:
        return {0: "j", 1: "k"}.get(strides[-1], "i")
    return {0: "b", 1: "c"}.get(strides[-1], "s")


def _set_pairs(
    walks: list[str],
    operands: Sequence[Operand],
    starts: Sequence[int],
    strides: Sequence[Sequence[int]],
    outputs: int,
) -> None:
    """Operands that take turns in memory (set_pairs of runtime/host/core/space.h)."""
    letters = zip(FIRSTS, SECONDS, strict=True)

    def take_turns(first: int, second: int) -> bool:
        return (
            operands[first].buffer is operands[second].buffer
            and strides[first] == strides[second]
            and starts[second] == starts[first] + 1
            and not any(number % 2 for number in (starts[first], *strides[first]))
        )

    for i in range(len(walks)):
        for j in range(i + 1, outputs if i < outputs else len(walks)):
            if any(walks[k] != "s" or strides[k][-1] != 2 for k in (i, j)):
                continue
            pair = next((p for p in ((i, j), (j, i)) if take_turns(*p)), None)
            if pair is not None:
                walks[pair[0]], walks[pair[1]] = next(letters)


def _vector(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], walks: Sequence[str], widths: list[int]
) -> int:
    """Elements per access: 16 bytes of the widest operand, halved until every row allows it."""
    spans = [width * pitch(walk) for width, walk in zip(widths, walks, strict=True)]
    widest = max(spans) or 16
    most = (32 if (spans[0] or widths[0]) < widest else 16) // widest
    plain = [(i, pitch(walk)) for i, walk in enumerate(walks) if pitch(walk)]
    return _halved(most, sizes, [[s // by for s in strides[i]] for i, by in plain])


def _row_vector(
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    walks: list[str],
    widths: list[int],
    outputs: int,
) -> tuple[int, bool]:
    """The same of a row-wise kernel, by the narrowest operand, and whether rows are shifted: then
    inputs that lie otherwise than most walk 'u' (RowPlan of runtime/host/core/rows.h)."""
    plain = [i for i, walk in enumerate(walks) if walk == "c"]
    narrowest, widest = (of((widths[i] for i in plain), default=16) for of in (min, max))
    most = 16 // (2 if narrowest == 1 < widest else narrowest)
    vector = _halved(most, sizes, [strides[i] for i in plain])
    if vector == most or sizes[-1] < _LEAST_SHIFTED:
        return vector, False
    rows = [math.prod(sizes[d + 1 : -1]) for d in range(len(sizes) - 1)]

    def pitched(pitch: int) -> set[int]:
        """The operands whose rows start so far on in a vector, each than the one before."""
        return {
            i
            for i in plain
            for steps in [zip(strides[i], rows, sizes, strict=False)]
            if all(size == 1 or (s - pitch * n) % most == 0 for s, n, size in steps)
        }

    written = {i for i in plain if i < outputs}
    found = [which for which in (pitched(sizes[-1]), pitched(0)) if written <= which]
    if not found:
        return vector, False
    fitting = max(found, key=len)
    for i in plain:
        walks[i] = "c" if i in fitting else "u"
    return most, True


def _halved(vector: int, sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """Until every row allows it."""
    while vector > 1 and (
        sizes[-1] % vector or any(s % vector for each in strides for s in each[:-1])
    ):
        vector //= 2
    return max(vector, 1)
