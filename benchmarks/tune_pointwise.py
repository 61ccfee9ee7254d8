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

CASES = [
    ("gelu_scale", torch.float32, 1 << 24),
    ("gelu_scale", torch.bfloat16, 1 << 24),
    ("gelu_scale", torch.float32, 1 << 26),
    ("add_mul_add", torch.float32, 1 << 24),
    ("quantize_int8", torch.float32, 50_000_000),
    ("bias_act", torch.bfloat16, 1 << 25),
    ("dropout_relu", torch.float32, 1 << 24),
    ("dropout_relu", torch.bfloat16, 1 << 25),
    ("swiglu", torch.bfloat16, 1 << 25),
]
SHAPES = [
    render.Shape(block, unroll, per)
    for block, unroll, per in itertools.product((128, 256, 512), (1, 2, 4), (8, 16, 1 << 20))
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
    for name, dtype, n in CASES:
        op = mf.OPS[name]
        shape = (n // 4096, 4096) if n % 4096 == 0 else (n // 1000, 1000)
        args = op.sample(Draw(shape, dtype, "cuda"))
        moved = op.cost(*args).bytes_moved
        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copy = seconds(lambda: target.copy_(source), flush, 15)
        results = []
        for launch in SHAPES:
            render.shape = lambda variant, launch=launch: launch
            host.forget_kernels()
            with torch.no_grad():
                took = seconds(lambda: op.fused(*args), flush)
            results.append((copy / took, launch))
        render.shape = original
        host.forget_kernels()
        with torch.no_grad():
            now = copy / seconds(lambda: op.fused(*args), flush, 15)
        results.sort(key=lambda r: -r[0])
        dt = str(dtype).removeprefix("torch.")
        print(f"{name} {dt} {n}: copy {copy * 1e6:.1f} us {moved / copy / 1e12:.2f} TB/s; now {now:.3f}")
        for share, launch in results[:6] + results[-1:]:
            per = launch.blocks_per_processor
            print(f"   {share:.3f} block {launch.block} unroll {launch.unroll} per {per}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
