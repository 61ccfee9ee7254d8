"""Every CUDA kernel worth compiling ahead of a GPU: for checks on machines that have none.

Which kernels a program needs is known only when it runs. This lists, for each op, what the usual
calls need: every choice and dtype, forward and backward, each driver and index width.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from megafuse.codegen import render
from megafuse.codegen.variant import Functors, Operand, Variant
from megafuse.registry import OPS, Op
from megafuse.runtime import attention, build, gemm_sm90, optimizers

FLOATS = {"Float": 4, "Half": 8, "BFloat16": 8, "Double": 2}  # dtype → elements in 16 bytes


@dataclass(frozen=True)
class Job:
    """One kernel's name, for people, its op or header, its source, whether a*b+c is rounded once,
    and the one architecture it is for, if so."""

    name: str
    op: str
    source: str
    contract: bool = False
    arch: str | None = None


def jobs() -> Iterator[Job]:
    """The kernels of all ops, as CUDA sources."""
    for op in OPS.values():
        if op.functors is None:
            continue
        for variant in _row_variants(op) if op.family == "rows" else _variants(op):
            shape = f"{variant.dims}d x{variant.vector}" + (" wide" if variant.wide_index else "")
            walks = "".join(o.walk for o in variant.operands)
            shape += f" {variant.row_vectors} a row" if variant.is_rows else ""
            only = "sm_90" if variant.clusters else None
            source = render.source(op.functors, variant)
            name = f"{variant.label} {shape} {walks}"
            yield Job(name, variant.op, source, variant.contracts, only)
    for variant in _passes():
        walks = "".join(o.walk for o in variant.operands)
        source = render.source(build.PASSES[variant.op], variant)
        name = f"{variant.label} {variant.dims}d {walks}"
        yield Job(name, variant.op, source, variant.contracts)
    for variant in _split():
        source = render.source(build.PASSES[variant.op], variant)
        name = f"{variant.label} {variant.row_vectors}"
        yield Job(name, variant.op, source, variant.contracts)
    for worker in ("split_mend", "split_most", "split_columns"):
        yield Job(worker.replace("_", " "), worker, render.worker(worker)[0])
    for gemm in gemm_sm90.catalog():
        name = f"{gemm.epilogue}, {gemm.columns} columns"
        yield Job(name, "gemm_sm90", gemm.source, arch=gemm_sm90.ARCH)
    for i, kernel in enumerate(attention.catalog()):
        arch = ("sm_80", "sm_90")[i % 2]
        yield Job(kernel.kernel, "attention", kernel.source, arch=arch)
    for step in optimizers.catalog():
        yield Job(step.label, "optimizer", step.cuda_source)


def _variants(op: Op) -> Iterator[Variant]:
    assert op.functors is not None
    inputs = len(op.tensors)
    for i, choices in enumerate(_choices(op.functors)):
        for dtype, vector in FLOATS.items():
            # whole tensors; the last operand a row; the last a number; strided and over 2^31
            layouts = [
                ("c" * inputs, 1, vector, False),
                ("c" * (inputs - 1) + "b", 2, vector, False),
                ("c" * (inputs - 1) + ("v" if inputs > 1 else "s"), 1, 1, False),
                ("s" * inputs, 3, 1, True),
                ("c" * (inputs - 1) + "e", 2, vector, False),  # vectors cut across rows
            ]
            # How operands walk does not depend on the choice: one has them all.
            for walks, dims, width, wide in layouts[: None if i == 0 else 1]:
                yield _variant(op, "forward", choices, dtype, walks, dims, width, wide)
            if not op.differentiable:
                continue
            read = "c" * (1 + len(op.autograd.saves))
            yield _variant(op, "backward", choices, dtype, read, 1, vector, False)
            if i > 0:
                continue
            yield _variant(op, "backward", choices, dtype, "s" * len(read), 3, 1, True)
            if not op.random and len(op.tensors) > 1:
                for family in ("sum_columns", "sum_rows", "sum_short_rows"):
                    yield _variant(op, family, choices, dtype, read, 3, vector, False)


# The same for rows whose vectors are cut across them.
_SHIFTED = {
    "Float": ((14336, True),),
    "BFloat16": ((96, False), (7168, True)),
    "Half": ((512, False),),
}
# Vectors in a row, and whether the GPU has clusters and much shared memory: a part of a warp has
# it, a warp, a block, a cluster, and more than any of them holds.
_ROWS = {
    "Float": (
        (24, False),
        (4096, False),
        (8192, True),
        (16384, True),
        (40960, True),
        (1 << 20, False),
    ),
    "BFloat16": ((96, False), (128, True), (512, False), (8192, True), (20480, True)),
    "Half": ((96, False),),
    "Double": ((24, False),),
}


def _row_variants(op: Op) -> Iterator[Variant]:
    assert op.functors is not None
    for choices in _choices(op.functors):
        for dtype, vector in FLOATS.items():
            for family in ("rows_forward", "rows_backward"):
                for vectors, clusters in _ROWS[dtype]:
                    yield _row_variant(op, family, choices, dtype, "c", vector, vectors, clusters)
                for vectors, clusters in _SHIFTED.get(dtype, ()):
                    yield _row_variant(op, family, choices, dtype, "u", vector, vectors, clusters)
            yield _row_variant(op, "rows_forward", choices, dtype, "s", 1, 100, False)
        yield _row_variant(op, "rows_backward", choices, "Float", "s", 1, 100, False)


def _row_variant(
    op: Op,
    family: str,
    choices: dict[str, str | bool],
    dtype: str,
    walk: str,
    vector: int,
    vectors: int,
    clusters: bool,
) -> Variant:
    """All operands of whole rows walk alike; with 's', offsets are of 64 bits too; with 'u', only
    those that all rows share do, and vectors are cut across rows."""
    double = dtype == "Double"
    exact = "Double" if double else "Float"
    shared = [a.name for a in op.arguments if a.shape == "C"]
    assert op.functors is not None
    late = op.functors.late_of(family)
    rule = op.autograd
    across = walk == "u"
    walk = "c" if across else walk
    if family == "rows_forward":
        outputs = [Operand(dtype, "c", r) for r in range(op.outputs)]
        outputs += [Operand(exact, "w", r) for r in range(len(rule.keeps))]
        read = [Operand(dtype, walk)] * len(op.tensors)
    else:
        summed = Operand(exact, "r")
        outputs = [
            replace(summed, result=r) if name in shared else Operand(dtype, "c", r)
            for name, r in rule.grads.items()
        ]
        read = [Operand(dtype, walk)] * op.outputs
        read += [Operand(*((exact, "b") if s in rule.keeps else (dtype, walk))) for s in rule.saves]
    if across and late:
        read[-late:] = [replace(o, walk="u") for o in read[-late:]]
    return Variant(
        op=op.name,
        family=family,
        choices=choices,
        device="cuda",
        common=dtype,
        double=double,
        across=across,
        draws=op.functors.draws(choices),
        late=late,
        dims=3 if walk == "s" else 2,
        vector=vector,
        wide_index=walk == "s",
        outputs=len(outputs),
        operands=(*outputs, *read),
        row_vectors=vectors,
        clusters=clusters,
        roomy=clusters,
    )


# The passes between GEMMs as composites call them: family, walks of outputs and of inputs.
_PASSES = {
    "linear_epilogue": (
        ("forward", "c", "cvv"),
        ("forward", "cc", "ccc"),
        ("forward", "s", "svs"),
        ("backward", "c", "cc"),
        ("sum_columns", "cr", "cc"),
        ("sum_columns", "r", "cv"),
    ),
    "dropout_add": (("forward", "c", "cc"), ("forward", "c", "cv"), ("backward", "c", "c")),
}


def _passes() -> Iterator[Variant]:
    for name, calls in _PASSES.items():
        for choices in _choices(build.PASSES[name]):
            for (dtype, vector), (family, written, read) in itertools.product(
                FLOATS.items(), calls
            ):
                compute = "Double" if dtype == "Double" else "Float"
                results = (0, 0) if "r" in written else (0, 1)
                stored = {"r": compute, "v": "Double"}
                outputs = [
                    Operand(stored.get(w, dtype), w, r)
                    for w, r in zip(written, results, strict=False)
                ]
                yield Variant(
                    op=name,
                    family=family,
                    choices=choices,
                    device="cuda",
                    common=dtype,
                    double=dtype == "Double",
                    dims=3 if "r" in written else 2,
                    vector=1 if "s" in written else vector,
                    wide_index="s" in written,
                    outputs=len(outputs),
                    operands=(*outputs, *(Operand(stored.get(w, dtype), w) for w in read)),
                )


def _choices(functors: Functors) -> Iterator[dict[str, str | bool]]:
    names = list(functors.choices)
    values: list[list[str | bool]] = [
        [True, False] if set(words) == {"True", "False"} else list(words)
        for words in functors.choices.values()
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
) -> Variant:
    summed = family.startswith("sum_")
    rule = op.autograd
    computed = {r for name, r in rule.grads.items() if name not in rule.passthrough}
    results = [0] if family == "forward" else [*sorted(computed), *([-1] * bool(rule.passthrough))]
    double = dtype == "Double"
    quantized = family == "forward" and op.signature.output_dtype == "int8"
    written = "Char" if quantized else dtype
    compute = "Double" if double else "Float"
    outputs = [Operand(written, "s" if "s" in walks else "c", r) for r in results]
    if summed:  # the first result whole, all of them summed
        outputs = [outputs[0], *(Operand(compute, "r", r) for r in results)]
    read = [Operand("Double" if w == "v" else dtype, w) for w in walks]
    if op.signature.dtype_like is not None:  # its first tensor is the quantized one
        first = 0 if family == "forward" else 1
        read[first] = Operand("Char", read[first].walk)
    return Variant(
        op=op.name,
        family=family,
        choices=choices,
        device="cuda",
        common=dtype,
        double=double,
        dims=dims,
        vector=vector,
        wide_index=wide,
        across="e" in walks,
        outputs=len(outputs),
        operands=(*outputs, *read),
    )


def _split() -> Iterator[Variant]:
    """float32 into halves, and back after the products."""
    real, half = Operand("Float", "c"), Operand("Half", "c")
    common = {"device": "cuda", "common": "Float", "double": False, "wide_index": False}
    for vectors in (96, 512, 4096):
        yield Variant(
            op="split_halves",
            family="rows_forward",
            choices={},
            dims=2,
            vector=8,
            outputs=3,
            operands=(half, replace(half, result=1), Operand("Float", "w"), real),
            row_vectors=vectors,
            **common,  # type: ignore[arg-type]
        )
    for choices in _choices(build.PASSES["split_epilogue"]):
        beside = (replace(real, walk="b"), real, real, Operand("Double", "v"))
        yield Variant(
            op="split_epilogue",
            family="forward",
            choices=choices,
            dims=2,
            vector=4,
            outputs=2,
            operands=(real, replace(real, result=1), real, *beside),
            **common,  # type: ignore[arg-type]
        )
