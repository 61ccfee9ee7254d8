"""launch-bound: operations so small that calling them takes longer than computing them."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total

NAME = "launch-bound"
_IDLE = 0.2  # of the call, on a GPU
_SMALL = 0.4  # of the call, on a CPU
_LEAST = 8  # operations


def find(case: Case) -> Iterator[Finding]:
    yield from _on_gpu(case) if case.on_gpu else _on_cpu(case)


def _on_gpu(case: Case) -> Iterator[Finding]:
    record = case.record
    waiting = sum(op.host_seconds for op in record.operations if op.waits)
    outside = sum(call.seconds for call in record.host_calls)
    idle = record.idle - waiting - outside
    if record.launches < _LEAST or idle < _IDLE * record.seconds or record.compiled:
        return
    # A replayed graph leaves about a microsecond between two kernels.
    predicted = record.busy + record.launches * 1e-6 + 10e-6
    where, lines = main_line(record.operations)
    yield Finding(
        NAME,
        f"the GPU idles {100 * idle / record.seconds:.2g} % of the call: {record.launches} "
        f"launches, {1e6 * record.busy / record.launches:.2g} µs of work each",
        "megafuse.optimize(model, graphs=True) fuses them and replays the rest; megafuse.fuse and "
        "torch.cuda.graph do it for a function.",
        where,
        record.idle,
        max(0.0, record.seconds - predicted),
        "likely",
        [
            Evidence("launches", float(record.launches), ""),
            Evidence("seconds that the GPU idles", idle, "s"),
            Evidence("seconds that the GPU works", record.busy, "s"),
        ],
        indices(op for op in record.operations if case.tiny(op)),
        "the GPU's own time, and a microsecond between two kernels",
        lines,
    )


def _on_cpu(case: Case) -> Iterator[Finding]:
    work = [op for op in case.record.operations if op.kind != "view"]
    small = [op for op in work if case.tiny(op) and op.phase != "optimizer"]
    seconds = total(small) + len(small) * case.gap
    if len(small) < _LEAST or seconds < _SMALL * case.record.seconds:
        return
    kinds = ("pointwise", "reduction", "copy", "fill")
    fused = [op for op in small if op.kind in kinds]
    left = sum(op.bytes_moved for op in fused) / case.machine.cached + case.machine.call
    where, lines = main_line(small)
    yield Finding(
        NAME,
        f"{len(small)} operations of {1e6 * seconds / len(small):.2g} µs each: calling them takes "
        "longer than their work",
        "Fuse them into one call with megafuse.fuse, or give each more to do: larger tensors.",
        where,
        seconds,
        max(0.0, case.gain(total(fused), len(fused)) - left),
        "likely",
        [
            Evidence("operations", float(len(small)), ""),
            Evidence("seconds of one", seconds / len(small), "s"),
            Evidence("seconds of an empty call", case.machine.call, "s"),
        ],
        indices(small),
        "one call in place of them, and their bytes from the cache",
        lines,
    )
