"""synchronisation: the host waits for the device, which then has nothing queued."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line
from megafuse.diagnose.findings.mask import picks_by_mask

NAME = "synchronisation"


def find(case: Case) -> Iterator[Finding]:
    """Only on a GPU: a CPU has nothing to wait for."""
    if not case.on_gpu:
        return
    waiting = [op for op in case.record.operations if op.waits and not picks_by_mask(op)]
    if not waiting:
        return
    waited = sum(op.host_seconds for op in waiting)
    # Without the waits the host runs ahead, and the call takes what the device or the host needs.
    free = max(case.record.busy, case.record.seconds - waited)
    names = {op.short for op in waiting}
    reads = "_local_scalar_dense" in names
    where, lines = main_line(waiting)
    yield Finding(
        NAME,
        f"the host waits for the GPU {len(waiting)} times in a call"
        + (", to read a number (.item())" if reads else f" ({', '.join(sorted(names))})"),
        "Keep numbers on the GPU and read them every hundred steps: detach() them and add them up "
        "there; copy with non_blocking=True.",
        where,
        waited,
        max(0.0, case.record.seconds - free),
        "likely",
        [
            Evidence("waits", float(len(waiting)), ""),
            Evidence("seconds waited", waited, "s"),
            Evidence("seconds that the GPU idles", case.record.idle, "s"),
        ],
        indices(waiting),
        "the longer of the host's and the GPU's own time",
        lines,
    )
