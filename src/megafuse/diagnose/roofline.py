"""The least time that the roofs allow each operation, and how near it comes.

    floor = max(bytes / bandwidth, FLOPs / rate), and a call's cost where that is larger

Bytes that an earlier operation has just touched, or that fit in the cache with everything else of
the call, are counted at the cache's rate.
"""

from __future__ import annotations

from megafuse.diagnose.compiled import COMPILED
from megafuse.diagnose.findings.product import sizes_of
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import Operation, Record

_PAGED = 1 << 20  # bytes: about where an allocation is memory fresh from the system


def fill(record: Record, machine: Machine) -> None:
    """Sets roof, floor and share of every operation."""
    for op in record.operations:
        if op.kind == "extension" and not op.flops:
            product = sizes_of(op)
            op.flops = product.flops if product is not None else 0
        if op.kind == "view" or (not op.bytes_moved and not op.flops):
            unknown = op.name == COMPILED
            op.roof, op.floor, op.roof_share = "compiled" if unknown else "call", 0.0, None
            continue
        op.floor, op.roof = floor(op, machine)
        op.roof_share = min(1.0, op.floor / op.seconds) if op.seconds > 0 else None


def floor(op: Operation, machine: Machine) -> tuple[float, str]:
    """Seconds, and which roof it is."""
    memory, kind = memory_floor(op.bytes_moved, machine, op.allocated), "memory"
    if op.bytes_moved <= machine.cache_bytes // 2:
        kind = "cache"
    compute = compute_floor(op, machine)
    least = (machine.launch or 0.0) if machine.device == "cuda" else machine.call / 2
    if max(memory, compute) < least:
        return least, "call"
    return (compute, "compute") if compute > memory else (memory, kind)


def memory_floor(moved: int, machine: Machine, allocated: int = 0) -> float:
    """A CPU's system hands out large memory page by page, when it is first written to."""
    rate = machine.cached if moved <= machine.cache_bytes // 2 else machine.copy
    pages = 0.0
    if machine.device == "cpu" and allocated >= _PAGED and machine.fresh:
        pages = allocated * max(0.0, 2 / machine.fresh - 2 / machine.copy)
    return moved / rate + pages


def compute_floor(op: Operation, machine: Machine) -> float:
    if not op.flops:
        return 0.0
    dtype = op.reads[0].dtype if op.reads else "float32"
    if op.kind not in ("product", "attention", "extension"):
        dtype = "float64" if dtype == "float64" else "float32"  # arithmetic outside products
    rate = machine.flop_rate(dtype)
    return op.flops / rate if rate else 0.0
