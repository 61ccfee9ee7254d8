"""Kernels of generated functors: from a Body and what the host runtime asks for to machine code."""

from __future__ import annotations

import torch

from megafuse.codegen import generated
from megafuse.codegen.body import Body, Fetched
from megafuse.codegen.row_launch import GpuRow, RowLaunch, row_launch
from megafuse.codegen.row_phases import Phases
from megafuse.codegen.variant import SUMMED, Operand
from megafuse.runtime import build
from megafuse.runtime.build import Asked, CpuKernel, CudaKernel

_BODIES: dict[str, Body] = {}


def declare(name: str, body: Body) -> None:
    """Tells the runtime what the functor of this name computes."""
    _BODIES[name] = body


def knows(name: str) -> bool:
    return name in _BODIES


def kernel(index: int, asked: Asked) -> CpuKernel | CudaKernel:
    """As build.kernel, of a generated functor; if it cannot be built, the function runs unfused."""
    body = _BODIES[asked.name]
    walks = tuple(walk for _, walk, _ in asked.operands)
    inputs = walks[asked.outputs :]
    device = "cpu" if index < 0 else "cuda"
    major, minor = torch.cuda.get_device_capability(index) if index >= 0 else (0, 0)
    clusters = major >= 9 and "g" not in walks  # a grid of segments has none
    row = GpuRow(asked.row_vectors, asked.vector, asked.across, asked.exact, clusters)
    launch = cuda_launch(body, walks, row) if index >= 0 else None
    sums = next((dtype for dtype, walk, _ in asked.operands if walk in SUMMED), "Float")
    made = generated.generated(
        body,
        device,
        asked.dims,
        walks[: asked.outputs],
        inputs,
        vector=asked.vector,
        wide_index=asked.wide_index,
        across=asked.across,
        short_rows=asked.short_rows,
        long_rows=asked.long_rows,
        launch=launch,
        sums=sums,
        sum_family=asked.family if asked.family.startswith("sum_") else "",
    )
    source = generated.source(made)
    label = f"{body.name} (fused)"
    if device == "cpu":
        return str(build.shipped_cpu(source, label)), made.symbol
    cubin = build.shipped_cuda(source, f"sm_{major}{minor}", label, made.contracts)
    shape = generated.shape(made)
    how = (shape.block, shape.unroll, shape.blocks_per_processor, shape.cluster, shape.shared)
    return cubin, made.symbol, *how


def cuda_launch(body: Body, walks: tuple[str, ...], row: GpuRow) -> RowLaunch | None:
    """How a row-wise CUDA kernel is launched whose operands, outputs first, walk so."""
    if not body.row_wise:
        return None
    phases = Phases(body)
    read = walks[len(walks) - len(body.inputs) :]
    inputs = tuple(Operand(dtype, walk) for dtype, walk in zip(body.inputs, read, strict=True))
    sums = sum(walk in SUMMED for walk in walks)
    return row_launch(
        inputs,
        phases.held,
        phases.kept_bytes,
        row,
        sums=sums,
        fetches=any(isinstance(term, Fetched) and term.run is None for term in phases.order),
        passes=phases.steps + bool(body.outputs),
    )
