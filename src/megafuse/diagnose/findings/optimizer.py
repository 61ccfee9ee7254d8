"""optimizer in a loop: parameters are updated one by one, several operations each."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total

NAME = "optimizer in a loop"
# Calls' worth of Python for each tensor that is updated, to sort them by dtype and device: AdamW
# with fused=True takes 0.45 to 0.6 ms of an H200's host for 200 parameters and their states.
_SORTING = 0.09


def find(case: Case) -> Iterator[Finding]:
    operations = [op for op in case.record.operations if op.phase == "optimizer"]
    work = [op for op in operations if op.kind != "view"]
    if len(work) < 4 or any("_fused_" in op.name for op in work):
        return
    outside = {t.storage: t.bytes for op in work for t in op.reads if t.outside}
    written = {t.storage: t.bytes for op in work for t in op.writes if t.storage in outside}
    least = case.memory_seconds(sum(outside.values()) + sum(written.values()))
    predicted = least * 1.2 + 5 * case.machine.call
    fewer = len(operations) - 2.0
    sorting = _SORTING * case.machine.call * len(written)
    if case.on_gpu:
        fewer -= sorting / max(case.host_per_operation, 1e-9)
    else:
        predicted += sorting
    many = any("_foreach_" in op.name for op in work)
    where, lines = main_line(work)
    yield Finding(
        NAME,
        f"the optimizer takes {len(work)} operations"
        + (" over lists of parameters" if many else ", parameter by parameter"),
        "Create it with fused=True, or take megafuse.optim's: all parameters in one kernel.",
        where,
        total(operations),
        case.gain(total(operations) - predicted, max(0.0, fewer)),
        "likely",
        [
            Evidence("operations", float(len(work)), ""),
            Evidence("bytes of parameters, gradients and state", float(sum(outside.values())), "B"),
            Evidence("seconds at the roof", least, "s"),
        ],
        indices(operations),
        "one pass over parameters, gradients and state",
        lines,
    )
