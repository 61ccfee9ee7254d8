"""repeated casts: the same tensor is cast to another dtype again and again."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.findings.repeated import groups, is_cast

NAME = "repeated casts"


def find(case: Case) -> Iterator[Finding]:
    again = [group for group in groups(case) if is_cast(group[0])]
    operations = [op for group in again for op in group[1:]]
    if not operations:
        return
    automatic = any(op.autocast for op in operations)
    most = max(again, key=total)
    kinds = f"{most[0].reads[0].dtype} to {most[0].writes[0].dtype}"
    where, lines = main_line(operations)
    yield Finding(
        NAME,
        f"the same tensor is cast from {kinds} {len(most)} times",
        "Keep frozen weights in the dtype that they are used in: layer.to(torch.bfloat16); "
        "autocast remembers only casts of parameters that require a gradient, within one block."
        if automatic
        else "Cast it once, before the loop.",
        where,
        total(op for group in again for op in group),
        case.gain(total(operations), len(operations)),
        "sure",
        [
            Evidence("times", float(len(most)), ""),
            Evidence("bytes cast again", float(sum(op.bytes_moved for op in operations)), "B"),
        ],
        indices(operations),
        "all casts but the first of each tensor",
        lines,
    )
