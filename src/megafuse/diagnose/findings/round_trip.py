"""dtype round trip: cast to another dtype, a few operations there, and cast back."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, apart, indices, main_line, total
from megafuse.diagnose.findings.repeated import is_cast
from megafuse.diagnose.record import Operation

NAME = "dtype round trip"
_BETWEEN = ("pointwise", "reduction", "copy")


def find(case: Case) -> Iterator[Finding]:
    operations: dict[int, Operation] = {}
    for op in case.record.operations:
        if is_cast(op) and op.reads and op.writes and op.index not in operations:
            operations |= {o.index: o for o in _trip(case, op)}
    if not operations:
        return
    found = [operations[i] for i in sorted(operations)]
    casts = [op for op in found if is_cast(op)]
    mine = {t.value for op in found for t in op.writes}
    size = _SIZES.get(casts[0].reads[0].dtype, 4)
    other = _SIZES.get(casts[0].writes[0].dtype, 4)
    outside = apart(t for op in found for t in op.reads if t.value not in mine)
    ends = sum(t.bytes for op in casts for t in op.writes if t.dtype == casts[0].reads[0].dtype)
    moved = sum(op.bytes_moved for op in found)
    rate = max((op.bytes_moved / op.seconds for op in found if op.seconds), default=1.0)
    predicted = (outside + ends) / rate
    where, lines = main_line(found)
    yield Finding(
        NAME,
        f"{casts[0].reads[0].dtype} becomes {casts[0].writes[0].dtype} and comes back, "
        f"in {len(casts)} casts",
        "Compute in the dtype that the numbers come in; where more digits are needed, "
        "megafuse.fuse keeps them in registers.",
        where,
        total(found),
        case.gain(total(found) - predicted, len(casts)),
        "likely",
        [
            Evidence("casts", float(len(casts)), ""),
            Evidence("bytes moved", float(moved), "B"),
            Evidence("bytes an element, before and there", float(max(size, other)), "B"),
        ],
        indices(found),
        "one pass over what comes in and goes out",
        lines,
    )


_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4}


def _trip(case: Case, cast: Operation) -> list[Operation]:
    """From a cast to the one that undoes it, with what is computed in between."""
    home, away = cast.reads[0].dtype, cast.writes[0].dtype
    path, values = [cast], {t.value for t in cast.writes}
    for op in case.record.operations[cast.index + 1 :]:
        if op.kind == "view" or not any(t.value in values for t in op.reads):
            continue
        if op.kind not in _BETWEEN:
            return []
        path.append(op)
        if is_cast(op) and op.writes and op.writes[0].dtype == home:
            # The other operands' casts are part of it.
            reads = {t.value for o in path for t in o.reads}
            beside = [
                o
                for o in case.record.operations[: op.index]
                if is_cast(o) and o is not cast and any(t.value in reads for t in o.writes)
            ]
            return sorted({o.index: o for o in (*path, *beside)}.values(), key=lambda o: o.index)
        if any(t.dtype == away for t in op.writes):
            values |= {t.value for t in op.writes}
    return []
