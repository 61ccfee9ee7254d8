"""A kernel of a plan as CUDA source for certain sizes: what a launch with aligned tensors runs.

The host runtime decides the same in C++ when it plans a launch (runtime/host/core/space.h): this is
for looking at kernels where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from megafuse.codegen.generated import Generated, generated
from megafuse.codegen.generated import source as unit
from megafuse.codegen.variant import BYTES
from megafuse.graph.plan import Kernel, Operand
from megafuse.runtime.generated import cuda_launch
from megafuse.runtime.nvrtc import Used, used
from megafuse.runtime.sources import KERNELS


def cuda_kernel(step: Kernel, symbols: Mapping[sympy.Symbol, Any]) -> Generated:
    """For these sizes."""
    body = step.body
    results = [*step.outputs, *step.sums, *step.row_outputs]
    shape = [_number(size, symbols) for size in step.shape]
    operands = [*results, *step.inputs]
    strides = [[_number(s, symbols) for s in operand.strides] for operand in operands]
    sizes, strides = _merged(shape, strides, body.row_wise)
    known = ["r"] * len(step.sums) + ["w"] * len(step.row_outputs)
    written, read = slice(len(step.outputs)), slice(len(results), None)
    walks = [_walk(*each) for each in zip(operands[written], strides[written], strict=True)]
    walks += known + [_walk(*each) for each in zip(operands[read], strides[read], strict=True)]
    family = _sum_family(step, sizes, strides[len(step.outputs)]) if step.sums else ""
    dtypes = [term.dtype for term in (*body.outputs, *body.row_outputs)] + list(body.inputs)
    vector = _vector(sizes, strides, walks, [BYTES[dtype] for dtype in dtypes])
    launch = cuda_launch(body, tuple(walks), -(-sizes[-1] // vector), vector)
    return generated(
        body,
        "cuda",
        3 if family else len(sizes),
        tuple(walks[: len(results)]),
        tuple(walks[read]),
        vector=vector,
        launch=launch,
        sums="Double" if "Double" in dtypes[len(step.outputs) : len(body.outputs)] else "Float",
        sum_family=family,
    )


def compiled_for(step: Kernel, symbols: Mapping[sympy.Symbol, Any], arch: str) -> Used:
    """Registers, spills and instructions on `arch`; raises CompileError."""
    made = cuda_kernel(step, symbols)
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


def _sum_family(step: Kernel, sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Of a kernel that is not row-wise: by what is last, kept or summed."""
    if step.body.row_wise:
        return ""
    return "sum_columns" if strides[-1] != 0 and sizes[-1] != 1 else "sum_rows"


def _walk(operand: Operand, strides: Sequence[int]) -> str:
    if operand.buffer is None:
        return "i"
    return {0: "b", 1: "c"}.get(strides[-1], "s")


def _vector(
    sizes: Sequence[int], strides: Sequence[Sequence[int]], walks: Sequence[str], widths: list[int]
) -> int:
    """Elements per access: 16 bytes of the widest operand, halved until every row allows it."""
    plain = [i for i, walk in enumerate(walks) if walk == "c"]
    widest = max((widths[i] for i in plain), default=16)
    vector = (32 if widths[0] < widest else 16) // widest
    while vector > 1 and (
        sizes[-1] % vector or any(s % vector for i in plain for s in strides[i][:-1])
    ):
        vector //= 2
    return max(vector, 1)
