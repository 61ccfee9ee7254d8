"""Rings: rows to come wait in shared memory while a block works on this one.

For GPUs whose blocks may have 227 KB of it (`Variant.roomy`). Each rule below is tried by rows.py
and gives None where it does not apply.
"""

from __future__ import annotations

from megafuse.codegen.shape import RowShape
from megafuse.codegen.variant import BYTES, Variant


def summed(variant: Variant) -> RowShape | None:
    """Where results are summed over rows. float32 rows of up to 4096 columns do better with the
    next one in registers, and short ones share a warp."""
    vectors, vector = variant.row_vectors, variant.vector
    least = 32 if vector == 8 else 1025
    if not (variant.row_sums and variant.roomy) or variant.double or vectors < least:
        return None
    row, late = vector_bytes(variant)
    if not row or row % 16 or late % 16:
        return None
    light = row <= 32
    for items in (4, 8):
        cluster, threads = 1, max(power_of_two(-(-vectors // items)), 32)
        if vectors > 1024:
            cluster, threads = max(threads // 256, 1), 256
        block = 512 if light and vectors <= 1024 else 256
        blocks = 2 if light and vectors > 1024 and items == 4 else 1
        ring = ring_bytes(blocks, cluster)
        if items * vector > 32 or cluster > 8 or (2 * row + late) * items * block > ring:
            continue
        if variant.few and cluster < 8:
            return None
        return RowShape(
            items=-(-vectors // (threads * cluster)),
            threads=threads,
            rows=max(block // threads, 1),
            cluster=cluster,
            whole=True,
            ahead=False,
            blocks_per_processor=blocks,
            ring=ring,
        )
    return None


def shifted(variant: Variant) -> RowShape | None:
    """Long shifted rows beside what all rows share, which does not lie as they do: it is read once
    for all rows of a block, not for each. 8192 x 50257, us, and without: layer_norm 508 and 612 in
    bfloat16, 865 and 1165 in float32; rms_norm 462 and 482 in bfloat16."""
    vectors, narrow = variant.row_vectors, variant.vector == 8
    if not (variant.across and variant.late and variant.roomy and variant.is_forward):
        return None
    row, late = vector_bytes(variant)
    if variant.double or variant.few or row != 16 or vectors <= (2048 if narrow else 4096):
        return None
    cluster = power_of_two(-(-vectors // (256 * (8 if narrow else 16))))
    if cluster > 8:
        return None
    items = -(-vectors // (256 * cluster))
    if not narrow:
        return RowShape(items, 256, 1, cluster, True, True, 4)
    held = variant.late > 1
    ring = ring_bytes(2, cluster)
    if (2 * row + (0 if held else late)) * items * 256 > ring:
        return None
    return RowShape(items, 256, 1, cluster, True, held, 2, ring)


def long(variant: Variant) -> RowShape | None:
    """Rows too long for the registers of eight blocks wait in the shared memory of up to sixteen.
    2048 x 151936, share of a copy, and read twice: softmax 81 and 94 % (35, 47; in 16, 32 bits),
    layer_norm 83 and 85 (31, 67), rms_norm 94 and 95 (65, 69), layer_norm's backward 68 (15)."""
    row, late = vector_bytes(variant)
    if not variant.roomy or variant.double or not row or row % 16 or late % 16:
        return None
    light = [(256, 8, 2)] if variant.vector == 8 and not variant.late and variant.is_forward else []
    for threads, cluster, blocks in (*light, (512, 8, 1), (256, 16, 1)):
        items = -(-variant.row_vectors // (threads * cluster))
        if variant.row_sums and cluster < 16:
            continue  # sums over rows are held too
        ring = ring_bytes(blocks, cluster)
        if items * variant.vector <= (80 if light else 48) and (
            (2 * row + late) * items * threads <= ring
        ):
            return RowShape(items, threads, 1, cluster, True, False, blocks, ring)
    return None


def vector_bytes(variant: Variant) -> tuple[int, int]:
    """Bytes that a vector of a row takes in the ring, and those of what all rows share."""
    width = {o: variant.vector * BYTES[o.dtype] for o in variant.inputs}
    first_late = len(variant.inputs) - variant.late
    row = sum(width[o] for o in variant.inputs[:first_late] if o.walk == "c")
    late = sum(width[o] for o in variant.inputs[first_late:] if o.walk in "cu")
    return row, late


def ring_bytes(blocks: int, cluster: int) -> int:
    """Shared memory for the rows to come of each of so many blocks on a processor of 227 KB, beside
    what warps tell each other: up to 1 KB in each block of a cluster for each of its blocks."""
    each = 227 // blocks - (blocks > 1)
    return (each - 3 - (cluster if cluster > 1 else 0)) * 1024


def power_of_two(n: int) -> int:
    """The least that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
