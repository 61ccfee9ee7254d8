"""How the CUDA pointwise driver should be launched: sweeps block, unroll and grid on this GPU.

python benchmarks/tune_pointwise.py

Prints, for some ops and sizes, bytes per second as a share of `copy_`'s in the same run, cold L2.
The winner is written into `megafuse.runtime.render.shape` by hand.
"""

from __future__ import annotations

import itertools
import statistics
import sys

import torch

import megafuse as mf
from megafuse.ops.registry import activate
from megafuse.ops.sample import Draw
from megafuse.runtime import loader, render

SIZES = (1 << 24, 1 << 26)
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = [
    render.Shape(block, unroll, 1 << 22)
    for block, unroll in itertools.product((128, 256, 512), (1, 2, 4))
]


def seconds(call, flush: torch.Tensor, repeats: int = 9) -> float:  # noqa: ANN001
    call()
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times)


def main() -> None:
    assert activate()
    host = loader.load()
    flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    original = render.shape
    for name, dtype, n in itertools.product(mf.OPS, DTYPES, SIZES):
        op = mf.OPS[name]
        args = op.sample(Draw((n // 1024, 1024), dtype, "cuda"))
        moved = op.cost(*args).bytes_moved
        source = torch.randint(0, 255, (moved // 2,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copy = seconds(lambda: target.copy_(source), flush, 15)
        results = []
        for launch, width in itertools.product(SHAPES, (16, 32)):
            host.set_vector_bytes(width)
            render.shape = lambda variant, launch=launch: launch
            host.forget_kernels()
            with torch.no_grad():
                took = seconds(lambda: op.fused(*args), flush)
            results.append((copy / took, launch, width))
        render.shape = original
        host.set_vector_bytes(16)
        host.forget_kernels()
        with torch.no_grad():
            now = copy / seconds(lambda: op.fused(*args), flush, 15)
        results.sort(key=lambda r: -r[0])
        dt = str(dtype).removeprefix("torch.")
        print(f"{name} {dt} {n}: copy {copy * 1e6:.1f} us {moved / copy / 1e12:.2f} TB/s; now {now:.3f}")
        told = [f"{r[0]:.3f} b{r[1].block} u{r[1].unroll} w{r[2]}" for r in results[:6]]
        print("   ", "; ".join(told))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
