"""strided access: single numbers are picked out of lines of memory that are fetched whole."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.record import Operation, Touched

NAME = "strided access"
_KINDS = ("pointwise", "reduction", "copy")
_LINE = {"cpu": 64, "cuda": 32}  # bytes that are fetched at once
_SIZES = {"float64": 8, "int64": 8, "bfloat16": 2, "float16": 2, "bool": 1}


def find(case: Case) -> Iterator[Finding]:
    found = [(op, wasted(op, case.record.device)) for op in case.record.operations]
    slow = [(op, times) for op, times in found if op.kind in _KINDS and times >= 2]
    slow = [(op, times) for op, times in slow if not case.tiny(op)]
    if not slow:
        return
    operations = [op for op, _ in slow]
    predicted = sum(op.bytes_moved for op in operations) / case.machine.read * 1.2
    most, times = max(slow, key=lambda each: each[0].seconds)
    where, lines = main_line(operations)
    yield Finding(
        NAME,
        f"{most.short} reads numbers that lie apart: memory delivers {times:.3g} times as much",
        "Keep what is read together next to each other: channels first, or .contiguous() once.",
        where,
        total(operations),
        case.gain(total(operations) - min(predicted, total(operations))),
        "likely",
        [
            Evidence("bytes wanted", float(sum(op.bytes_moved for op in operations)), "B"),
            Evidence("bytes fetched for each of them", times, "×"),
        ],
        indices(operations),
        "the same bytes, one after the other, at the memory's rate",
        lines,
    )


def wasted(op: Operation, device: str) -> float:
    """Bytes fetched for each byte wanted, of the largest tensor that it reads."""
    large = max(op.reads, key=lambda t: t.bytes, default=None)
    return _fetched(large, _LINE.get(device, 64)) if large is not None else 1.0


def _fetched(t: Touched, line: int) -> float:
    steps = [abs(s) for n, s in zip(t.shape, t.strides, strict=False) if n > 1 and s]
    size = _SIZES.get(t.dtype, 4)
    if not steps or min(steps) <= 1:
        return 1.0
    return min(line, min(steps) * size) / size
