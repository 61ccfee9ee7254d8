"""How row-wise CUDA kernels cut rows; measured by benchmarks/tune_rows.py on an H200.

A thread has 64 bytes of each input under way, in 16 bits 128 where that saves threads: a block with
few of them waits less at its barrier. Where it draws random numbers too, it has fewer, and leaves
registers to others: ptxas would draw for all its vectors while they are on their way, and 142
registers let one block on a processor. Where results are summed over rows, it holds those sums too,
and the next rows wait in shared memory (rings.py), or in registers as far as 128 of them go: a
block is then as large as those allow, one or two a processor, for few partial sums. Rows longer
than a block holds go to a cluster of blocks where there are such; beyond that they are read twice.
"""

from __future__ import annotations

from typing import NamedTuple

from megafuse.codegen.shape import ONE_SHOT, RowShape
from megafuse.codegen.tuning import rings
from megafuse.codegen.tuning.rings import power_of_two
from megafuse.codegen.variant import BYTES, Variant


def shape(variant: Variant) -> RowShape:
    """Vectors a thread, threads and blocks a row, rows a block."""
    ring = rings.summed(variant) if variant.row_sums else rings.shifted(variant)
    if ring is not None:
        return ring
    limits = _of_sums(variant) if variant.row_sums else _of_plain(variant)
    for items, ahead in limits.tries:
        held = _held(variant, limits, items, ahead)
        if held is not None:
            return held
    return rings.long(variant) or _read_twice(variant, limits)


class _Limits(NamedTuple):
    """What a cut may have: threads a block, blocks a processor, and in the order they are tried,
    vectors a thread and whether it loads the next row ahead of the sums of this one."""

    block: int
    blocks_per_processor: int
    tries: list[tuple[int, bool]]
    crowded: bool = False  # registers are kept for 1024 threads a processor


def _of_sums(variant: Variant) -> _Limits:
    ahead = min(_registers_free(variant) // variant.vector or 1, 8)
    behind = 16 // variant.vector // (2 if variant.double else 1)
    if behind > ahead and variant.row_vectors > 512 * ahead:
        return _Limits(512, 1, [(behind, False)])
    return _Limits(512, 1, [(ahead, True), (behind, False)])


def _of_plain(variant: Variant) -> _Limits:
    vectors = variant.row_vectors
    narrow = variant.vector == 8  # 16-bit numbers
    # From 10240 to 12288 columns of float32, eight vectors a thread did better than two blocks.
    float32 = variant.vector == 4 and not 2048 < vectors <= 3072
    most = 4096 if variant.clusters else 2048
    if variant.is_forward and vectors <= most and (variant.draws or float32):
        return _of_one_turn(variant, narrow)
    widths = [BYTES[o.dtype] for o in variant.operands if o.walk == "c"]
    per_vector = max(16 // min(widths, default=4) // variant.vector, 1)  # vectors in 16 bytes
    items = min((4 if narrow and vectors <= 512 else 8) * per_vector, 16)
    if not variant.clusters:
        return _Limits(1024, ONE_SHOT, [(items, False)])
    block = 256 if narrow else 512
    # Rows for several blocks that come in twice the bytes: those of a sum and its norm.
    twice = max(sum(o.walk == "c" for o in variant.operands[: variant.outputs]), 1)
    if not (variant.is_forward and vectors * twice > 8 * block):
        return _Limits(block, ONE_SHOT, [(items, False)])
    if narrow and twice == 1 and not variant.late and 4096 < vectors <= 7 * 1024:
        # 1024 threads leave fewer idle than eight blocks of 256 with four vectors each: of shifted
        # rows in two blocks, else in four. softmax of 50257 columns 0.84 (0.74), 50264 0.91, 40968
        # 0.95 with four blocks a processor (0.83 with fewer; seven vectors leave no room for it).
        block = 512 if variant.across else 256
        crowded = variant.across or vectors <= 6 * 1024
        return _Limits(block, ONE_SHOT, [(7, False)], crowded)
    if narrow:
        return _Limits(block, ONE_SHOT, [(4, False)])
    block = 256 * min(twice, 2)
    return _Limits(block, 1024 // block, [(2048 // block, True)])


def _of_one_turn(variant: Variant, narrow: bool) -> _Limits:
    """float32, or drawn numbers: fewer vectors a thread. Share of a copy, and with twice as many:
    layer_norm of 2048 columns 0.97 (0.72), of 8192 0.96 (0.90), softmax of 2048 0.98 (0.78); with
    dropout residual_rms_norm of 1024 columns 0.99 (0.88), of 8192 0.96 (0.74), and in bfloat16 0.97
    (0.75)."""
    vectors = variant.row_vectors
    if narrow:
        items = 4 if variant.across else 3
    elif vectors <= 64:
        items = 2
    else:  # from 128 vectors on, a block is 128 threads or more
        items = -(-vectors // 128) if 128 < vectors <= 512 else 4
    block = 512 if variant.clusters else 1024
    return _Limits(block, ONE_SHOT, [(items, False)], crowded=variant.draws or variant.across)


def _held(variant: Variant, limits: _Limits, items: int, ahead: bool) -> RowShape | None:
    """The row in registers, if the threads of a block or a cluster hold it."""
    vectors, sums = variant.row_vectors, variant.row_sums
    threads = power_of_two(vectors if variant.few else -(-vectors // items))
    threads = max(threads, min(8, power_of_two(vectors)))
    if variant.across:  # a thread for each element at the ends of a row
        threads = max(threads, 2 * variant.vector)
    most = limits.block
    cluster = min(threads // most, 8) if variant.clusters and threads > most else 1
    threads = min(threads, most)
    if vectors > items * threads * cluster:
        return None
    # 128 threads, but two rows of 64 lost: 2048 columns 0.74 of a copy, and four of them 0.95.
    block = 512 if sums else 256 if threads == 64 and not variant.draws else 128
    rows = max(block // threads, 1)
    return RowShape(
        items=-(-vectors // (threads * cluster)),
        threads=threads,
        rows=rows,
        cluster=cluster,
        whole=True,
        ahead=ahead,
        blocks_per_processor=2 if sums and cluster == 8 else limits.blocks_per_processor,
        resident=max(1024 // (threads * rows), 1) if limits.crowded else 1,
    )


def _read_twice(variant: Variant, limits: _Limits) -> RowShape:
    cluster = 8 if variant.clusters else 1
    items = min(limits.tries[-1][0], 16 if variant.row_sums else 4)
    return RowShape(items, 512, 1, cluster, whole=False, ahead=False, blocks_per_processor=2)


def _registers_free(variant: Variant) -> int:
    """Elements that fit into the registers of a thread: of each a float an input and a sum, and
    what is loaded ahead of them. 104 of 128: 24 for all else, measured with ptxas."""
    inputs = [o for o in variant.inputs if o.walk in "csu"]
    words = sum(BYTES[o.dtype] for o in inputs) / 4
    numbers = (len(inputs) + variant.row_sums) * (2 if variant.double else 1)
    return int(104 / (words + numbers))
