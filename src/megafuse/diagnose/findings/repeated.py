"""repeated work: the same operation on the same numbers, more than once in a call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.record import Operation

NAME = "repeated work"
_KINDS = ("pointwise", "reduction", "product", "copy", "index", "attention")
_RANDOM = ("dropout", "bernoulli", "rand", "normal", "multinomial", "uniform")


def find(case: Case) -> Iterator[Finding]:
    again = [group for group in groups(case) if not is_cast(group[0])]
    operations = [op for group in again for op in group[1:]]
    if not operations:
        return
    first = max(again, key=lambda group: total(group[1:]))
    where, lines = main_line(operations)
    times = f"{len(first)} times" if len(again) == 1 else f"up to {len(first)} times"
    yield Finding(
        NAME,
        f"{first[0].short} is computed {times} from the same numbers",
        "Compute it once before the loop, and use the result again.",
        where,
        total(op for group in again for op in group),
        case.gain(total(operations), len(operations)),
        "sure",
        [
            Evidence("times that it is computed", float(len(first)), ""),
            Evidence("operations that are not needed", float(len(operations)), ""),
        ],
        indices(operations),
        "all but the first of each",
        lines,
    )


def groups(case: Case) -> list[list[Operation]]:
    """Operations that give the same result, two or more. Results of one are the other's: what is
    computed from them is the same again."""
    same: dict[int, int] = {}  # a value → the first one that holds the same numbers
    seen: dict[tuple[object, ...], list[Operation]] = defaultdict(list)
    for op in case.record.operations:
        if op.kind not in _KINDS or not op.reads or any(r in op.name for r in _RANDOM):
            continue
        memory = {t.storage for t in op.reads}
        if any(t.storage in memory for t in op.writes):  # in place
            continue
        key = (op.phase, op.name, op.numbers, tuple(
            (same.get(t.value, t.value), t.offset, t.shape, t.strides) for t in op.reads
        ))  # fmt: skip
        seen[key].append(op)
        for mine, first in zip(op.writes, seen[key][0].writes, strict=False):
            same[mine.value] = same.get(first.value, first.value)
    return [group for group in seen.values() if len(group) > 1 and total(group[1:]) > 0]


def is_cast(op: Operation) -> bool:
    kinds = {t.dtype for t in (*op.reads, *op.writes)}
    return op.kind == "copy" and len(kinds) > 1
