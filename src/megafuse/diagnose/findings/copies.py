"""hidden copy: numbers are moved to be what they were, in another layout or on another device."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.compiler.explained import size
from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.findings.repeated import is_cast
from megafuse.diagnose.record import Operation

NAME = "hidden copy"
_COPIES = ("clone", "copy_", "_to_copy", "contiguous", "_reshape_copy", "repeat", "expand_copy")


def find(case: Case) -> Iterator[Finding]:
    operations = [op for op in case.record.operations if _is_hidden(op)]
    if not operations:
        return
    weights = [op for op in operations if any(t.outside for t in op.reads)]
    across = [op for op in operations if len({t.device for t in (*op.reads, *op.writes)}) > 1]
    moved = sum(op.bytes_moved for op in operations)
    where, lines = main_line(operations)
    if across:
        advice = "Move it to the device once, before the loop, or non_blocking=True."
    elif weights:
        advice = "Store it once in the layout that it is used in: every call makes this copy."
    else:
        advice = "Ask for the layout where the tensor is made, or use .view instead of .reshape."
    yield Finding(
        NAME,
        f"{size(moved)} are copied, only to be laid out in another way"
        if not across
        else f"{size(moved)} go from one device to another in every call",
        advice,
        where,
        total(operations),
        case.gain(total(operations), len(operations)),
        "sure" if weights else "perhaps",
        [
            Evidence("bytes moved", float(moved), "B"),
            Evidence("copies", float(len(operations)), ""),
        ],
        indices(operations),
        "no copy at all",
        lines,
    )


def _is_hidden(op: Operation) -> bool:
    if op.kind != "copy" or op.short not in _COPIES or is_cast(op) or not op.reads:
        return False
    source = op.reads[0]
    if len({t.device for t in (*op.reads, *op.writes)}) > 1:
        return True
    target = op.writes[0] if op.writes else None
    return target is None or source.strides != target.strides or source.shape != target.shape
