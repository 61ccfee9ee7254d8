"""work outside PyTorch: a function of NumPy's, a file, a pause takes the host's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case
from megafuse.diagnose.record import HostCall

NAME = "work outside PyTorch"
_LEAST = 0.1  # of the call: less is what Python takes for anything


def find(case: Case) -> Iterator[Finding]:
    groups: dict[str, list[HostCall]] = defaultdict(list)
    for call in case.record.host_calls:
        if call.kind in ("python", "print"):
            groups[call.name].append(call)
    if not groups:
        return
    name, calls = max(groups.items(), key=lambda each: sum(c.seconds for c in each[1]))
    seconds = sum(call.seconds for call in calls)
    if case.share(seconds) < _LEAST:
        return
    # A GPU may go on with what was launched before.
    hidden = case.record.busy if case.on_gpu else 0.0
    gain = max(0.0, min(seconds, case.record.seconds - hidden))
    times = f", {len(calls)} times" if len(calls) > 1 else ""
    yield Finding(
        NAME,
        f"{name} takes {100 * case.share(seconds):.2g} % of the call{times}, outside of PyTorch",
        "Do it once before the loop, or in the data loader, or with tensors.",
        calls[0].where,
        seconds,
        gain,
        "perhaps",
        [
            Evidence("seconds", seconds, "s"),
            Evidence("calls", float(len(calls)), ""),
        ],
        how="the call without it",
    )
