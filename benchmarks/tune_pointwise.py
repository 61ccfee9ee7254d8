"""How the CUDA pointwise driver should be launched: sweeps block and unroll on this GPU.

python benchmarks/tune_pointwise.py

Prints, for every op, two dtypes and two sizes, bytes per second as a share of `copy_`'s in the
same run, cold L2, best first. What wins is written into
`megafuse.codegen.tuning.pointwise.shape` by hand.
"""

from __future__ import annotations

import itertools

import torch

import megafuse as mf
from megafuse.bench.timing import compare
from megafuse.codegen import tuning
from megafuse.codegen.shape import ONE_SHOT, Shape
from megafuse.registry import Op, activate
from megafuse.registry.sample import Draw
from megafuse.runtime import loader

SIZES = (1 << 24, 1 << 26)
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = [
    Shape(block, unroll, ONE_SHOT)
    for block, unroll in itertools.product((128, 256, 512), (1, 2, 4))
]


def share_of_copy(op: Op, elements: int, dtype: torch.dtype) -> float:
    """copy_'s time over the fused op's, for the same number of bytes."""
    args = op.sample(Draw((elements // 1024, 1024), dtype, "cuda"))
    moved = op.cost(*args).bytes_moved
    source = torch.randint(0, 255, (moved // 2,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    with torch.no_grad():
        times = compare(
            {"copy": lambda i: target.copy_(source), "fused": lambda i: op.fused(*args)},
            device="cuda",
            budget=0.05,
        )
    return times["copy"].median / times["fused"].median


def main() -> None:
    assert activate(), "no C++ compiler"
    host = loader.load()
    assert host is not None
    shipped = tuning.pointwise.shape
    ops = [op for op in mf.OPS.values() if op.pointwise]
    for op, dtype, elements in itertools.product(ops, DTYPES, SIZES):
        now = share_of_copy(op, elements, dtype)
        found = []
        for launch in SHAPES:
            tuning.pointwise.shape = lambda functors, variant, launch=launch: launch
            host.forget_kernels()
            share = share_of_copy(op, elements, dtype)
            found.append((share, f"{share:.3f} block {launch.block} unroll {launch.unroll}"))
        tuning.pointwise.shape = shipped
        host.forget_kernels()
        best = "; ".join(text for _, text in sorted(found, reverse=True)[:4])
        label = f"{op.name} {str(dtype).removeprefix('torch.')} {elements}"
        print(f"{label}: shipped {now:.3f}; {best}", flush=True)


if __name__ == "__main__":
    main()
