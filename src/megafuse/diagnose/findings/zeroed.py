"""gradients zeroed by writing: zeros are stored, read and added to, where nothing need be there."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.compiler.explained import size
from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total

NAME = "gradients zeroed by writing"
_ZERO = ("zero_", "fill_", "_foreach_zero_")
_ADD = ("add_", "_foreach_add_")


def find(case: Case) -> Iterator[Finding]:
    zeroing = [op for op in case.record.operations if op.short in _ZERO and op.phase != "backward"]
    zeroed = {t.storage for op in zeroing for t in op.writes}
    adding = [
        op
        for op in case.record.operations
        if op.phase == "backward"
        and op.short in _ADD
        and any(t.storage in zeroed for t in op.writes)
    ]
    if not adding:
        return
    added = {t.storage for op in adding for t in op.writes}
    zeroing = [op for op in zeroing if any(t.storage in added for t in op.writes)]
    operations = sorted((*zeroing, *adding), key=lambda op: op.index)
    moved = sum(op.bytes_moved for op in operations)
    where, _ = main_line(zeroing)
    yield Finding(
        NAME,
        f"gradients are set to zero and then added to: {size(moved)} for nothing",
        "zero_grad(set_to_none=True), which is the default: the first gradient is then kept as it "
        "is computed.",
        where,
        total(operations),
        case.gain(total(operations), len(operations)),
        "sure",
        [
            Evidence("bytes moved for it", float(moved), "B"),
            Evidence("gradients", float(len(adding)), ""),
        ],
        indices(operations),
        "neither the zeros nor the additions",
    )
