"""Every CUDA kernel worth compiling ahead of a GPU: for checks on machines that have none.

Which kernels a program needs is known only when it runs. This lists, for each op, what the usual
calls need: every choice and dtype, forward and backward, each driver and index width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from megafuse.registry import OPS, Op
from megafuse.runtime import render

FLOATS = {"Float": 4, "Half": 8, "BFloat16": 8, "Double": 2}  # dtype → elements in 16 bytes


@dataclass(frozen=True)
class Job:
    """One kernel's name, for people, and its source."""

    name: str
    source: str


def jobs() -> Iterator[Job]:
    """The kernels of all ops, as CUDA sources."""
    for op in OPS.values():
        for variant in _variants(op):
            shape = f"{variant.dims}d x{variant.vector}" + (" wide" if variant.wide_index else "")
            walks = "".join(o.walk for o in variant.operands)
            yield Job(f"{variant.label} {shape} {walks}", render.source(op.functors, variant))


def _variants(op: Op) -> Iterator[render.Variant]:
    inputs = len(op.tensors)
    for choices in _choices(op):
        for dtype, vector in FLOATS.items():
            # whole tensors; the last operand a row; the last a number; strided and over 2^31
            layouts = [
                ("c" * inputs, 1, vector, False),
                ("c" * (inputs - 1) + "b", 2, vector, False),
                ("c" * (inputs - 1) + ("v" if inputs > 1 else "s"), 1, 1, False),
                ("s" * inputs, 3, 1, True),
            ]
            for walks, dims, width, wide in layouts:
                yield _variant(op, "forward", choices, dtype, walks, dims, width, wide)
            if not op.differentiable:
                continue
            read = "c" * (1 + len(op.saves))
            yield _variant(op, "backward", choices, dtype, read, 1, vector, False)
            yield _variant(op, "backward", choices, dtype, "s" * len(read), 3, 1, True)
            if not op.random and len(op.tensors) > 1:
                for family in ("sum_columns", "sum_rows", "sum_short_rows"):
                    yield _variant(op, family, choices, dtype, read, 3, vector, False)


def _choices(op: Op) -> Iterator[dict[str, str | bool]]:
    names = list(op.functors.choices)
    values: list[list[str | bool]] = [
        [True, False] if set(words) == {"True", "False"} else list(words)
        for words in op.functors.choices.values()
    ]
    for picked in itertools.product(*values):
        yield dict(zip(names, picked, strict=True))


def _variant(
    op: Op,
    family: str,
    choices: dict[str, str | bool],
    dtype: str,
    walks: str,
    dims: int,
    vector: int,
    wide: bool,
) -> render.Variant:
    summed = family.startswith("sum_")
    results = [0] if family == "forward" else sorted(set(op.grads.values()))
    double = dtype == "Double"
    written = {"forward": {"int8": "Char"}.get(op.output_dtype or "", dtype)}.get(family, dtype)
    compute = "Double" if double else "Float"
    outputs = [render.Operand(written, "s" if "s" in walks else "c", r) for r in results]
    if summed:  # the first result whole, all of them summed
        outputs = [outputs[0], *(render.Operand(compute, "r", r) for r in results)]
    read = [render.Operand("Double" if w == "v" else dtype, w) for w in walks]
    if op.dtype_like is not None:  # its first tensor is the quantized one
        first = 0 if family == "forward" else 1
        read[first] = render.Operand("Char", read[first].walk)
    return render.Variant(
        op=op.name,
        family=family,
        choices=choices,
        device="cuda",
        common=dtype,
        double=double,
        dims=dims,
        vector=vector,
        wide_index=wide,
        outputs=len(outputs),
        operands=(*outputs, *read),
    )
