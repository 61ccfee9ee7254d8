"""How the CUDA row driver should cut rows: sweeps threads, blocks and vectors a thread on this GPU.

python benchmarks/tune_rows.py [OP ...] [--columns 768,50257] [--dtypes bfloat16] [--bytes 67108864]

Prints, for a few ops, dtypes and lengths of rows, forward and backward, bytes per second as a share
of `copy_`'s in the same run, cold L2, best first. What wins is written into
`megafuse.codegen.tuning.rows.shape` by hand.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

import megafuse as mf
from megafuse.bench.timing import compare
from megafuse.codegen import render, tuning
from megafuse.codegen.shape import ONE_SHOT, RowShape
from megafuse.codegen.tuning.rings import ring_bytes, vector_bytes
from megafuse.codegen.variant import Variant
from megafuse.registry import Op, activate
from megafuse.registry.sample import Draw
from megafuse.runtime import build, loader

OPS = ("layer_norm", "softmax")
COLUMNS = (768, 1024, 4096, 16384, 65536)


def candidates(variant: Variant) -> Iterator[RowShape]:
    vectors = variant.row_vectors
    sums = any(o.walk == "r" for o in variant.operands)
    grids = (1, 2) if sums else (ONE_SHOT,)
    most = 8 if sums and variant.vector == 8 else 16
    for threads, cluster in itertools.product((16, 32, 64, 128, 256, 512, 1024), (1, 2, 4, 8)):
        items = -(-vectors // (threads * cluster))
        if items > most or threads * cluster > 2 * vectors or (cluster > 1 and threads < 256):
            continue
        registers = items * variant.vector * (3 if sums else 1)
        if registers * threads > 48 * 1024:
            continue
        blocks = {max(threads, 128), max(threads, 256)} | ({max(threads, 512)} if sums else set())
        for block, grid in itertools.product(sorted(blocks), grids):
            rows = block // threads if cluster == 1 else 1
            for ahead in (True, False) if sums and registers <= 64 else (False,):
                yield RowShape(items, threads, rows, cluster, True, ahead, grid)
            if not sums and registers <= 32:
                for waves in (1, 2):
                    grid = max(waves * 1024 // block, 1)
                    yield RowShape(items, threads, rows, cluster, True, True, grid)
    yield from rings(variant)
    if vectors >= 1024:
        for threads, items, grid in itertools.product((512, 1024), (1, 2, 4), (1, 2, 4)):
            if items * threads < vectors and items * variant.vector * threads <= 24 * 1024:
                yield RowShape(items, threads, 1, 1, False, False, grid)


def rings(variant: Variant) -> Iterator[RowShape]:
    """Rows to come in shared memory, one to four blocks a processor."""
    sums = sum(o.walk == "r" for o in variant.operands)
    row, late = vector_bytes(variant)
    if not row or row % 16 or late % 16:
        return
    for threads, cluster in itertools.product((32, 64, 128, 256, 512, 1024), (1, 2, 4, 8, 16)):
        items = -(-variant.row_vectors // (threads * cluster))
        if threads * cluster > 2 * variant.row_vectors or (cluster > 1 and threads < 256):
            continue
        registers = items * variant.vector * max(sums, 1)
        if registers > 96 or registers * threads > 40 * 1024:
            continue
        for block, blocks in itertools.product((256, 512, 1024), (1, 2, 3, 4)):
            ring = ring_bytes(blocks, cluster)
            if block < threads or (cluster > 1 and block != threads) or block * blocks > 1024:
                continue
            if (2 * row + late) * items * block <= ring:
                rows = block // threads
                yield RowShape(items, threads, rows, cluster, True, False, blocks, ring)


def captured(call: Callable[[], Any]) -> dict[str, tuple[str, Variant]]:
    """The row kernels that a call asks for: op and variant by family."""
    found = {}
    shipped = render.source

    def source(functors: Any, variant: Variant) -> str:
        if variant.is_rows:
            found[variant.family] = (variant.op, variant)
        return shipped(functors, variant)

    render.source = source
    try:
        call()
    finally:
        render.source = shipped
    return found


def compiled(job: tuple[str, str, bool]) -> bool:
    source, arch, contract = job
    try:
        build.cuda_binary(source, arch, "", contract)
    except Exception:  # too many registers, say: that shape is out
        return False
    return True


def sweep(
    op: Op, columns: int, dtype: torch.dtype, size: int, passes: str, pool: ProcessPoolExecutor
) -> None:
    rows = size // columns // dtype.itemsize
    args = list(op.sample(Draw((rows, columns), dtype, "cuda")))
    args = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    leaves = [a for a in args if isinstance(a, torch.Tensor)]
    host = loader.load()
    assert host is not None
    out = op.listed(op.fused(*args))
    grad = [torch.randn_like(t) for t in out]
    source, target = torch.randn_like(out[0]), torch.empty_like(out[0])

    def forward(_: int = 0) -> None:
        with torch.no_grad():
            op.fused(*args)

    def backward(_: int = 0) -> None:
        torch.autograd.grad(out, leaves, grad, retain_graph=True)

    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    shipped = tuning.rows.shape
    for family, call in (("rows_forward", forward), ("rows_backward", backward)):
        if passes not in ("both", family.removeprefix("rows_")):
            continue
        host.forget_kernels()
        name, variant = captured(call)[family]
        # In copies of a tensor: what is read or written of whole rows, without what they share.
        shared = variant.inputs[len(variant.inputs) - variant.late :]
        of_rows = sum(o.walk == "c" for o in variant.operands)
        moved = (of_rows - sum(o.walk == "c" for o in shared)) / 2
        shapes = list(dict.fromkeys([shipped(variant), *candidates(variant)]))
        sources = []
        for shape in shapes:
            tuning.rows.shape = lambda v, shape=shape, variant=variant: (
                shape if v == variant else shipped(v)
            )
            text = render.source(build._FUNCTORS[name], variant)
            sources.append((text, arch, variant.contracts))
        fine = list(pool.map(compiled, sources))
        shares = []
        for shape, works in zip(shapes, fine, strict=True):
            if not works:
                continue
            tuning.rows.shape = lambda v, shape=shape, variant=variant: (
                shape if v == variant else shipped(v)
            )
            host.forget_kernels()
            try:
                calls = {"copy": lambda i: target.copy_(source), "fused": call}
                times = compare(calls, device="cuda", budget=0.01, warmup=1, rounds=7)
            except RuntimeError as error:  # not launchable
                print("   ", shape, str(error)[:60])
                continue
            shares.append((moved * times["copy"].median / times["fused"].median, shape))
        tuning.rows.shape = shipped
        host.forget_kernels()
        now = shares[0][0]
        ranked = sorted(shares, key=lambda s: -s[0])[:5]
        told = "; ".join(f"{share:.2f} {_told(shape)}" for share, shape in ranked)
        label = f"{name} {family[5:]} {str(dtype).removeprefix('torch.')} {columns}"
        print(f"{label}: shipped {now:.2f} {_told(shares[0][1])}; {told}", flush=True)


def _told(shape: RowShape) -> str:
    grid = "" if shape.blocks_per_processor == ONE_SHOT else f" grid {shape.blocks_per_processor}"
    ring = f" ring {shape.ring >> 10} K" if shape.ring else ""
    more = f"{'' if shape.whole else ' streamed'}{' ahead' if shape.ahead else ''}{grid}{ring}"
    return f"[{shape.threads}x{shape.cluster} rows {shape.rows} items {shape.items}{more}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", default=OPS)
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--bytes", type=int, default=1 << 26, help="of one tensor")
    parser.add_argument("--passes", choices=("forward", "backward", "both"), default="both")
    asked = parser.parse_args()
    assert activate(), "no C++ compiler"
    columns = [int(c) for c in asked.columns.split(",")]
    dtypes = [getattr(torch, d) for d in asked.dtypes.split(",")]
    with ProcessPoolExecutor(14) as pool:
        for each, dtype, name in itertools.product(columns, dtypes, asked.ops):
            sweep(mf.OPS[name], each, dtype, asked.bytes, asked.passes, pool)


if __name__ == "__main__":
    main()
