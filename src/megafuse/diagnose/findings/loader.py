"""waits for data: the step cannot begin before its batch is there."""

from __future__ import annotations

import math
from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case

NAME = "waits for data"
_MOST = 8  # workers that are suggested


def find(case: Case) -> Iterator[Finding]:
    calls = [call for call in case.record.host_calls if call.kind == "data loader"]
    waited = sum(call.seconds for call in calls)
    if not calls:
        return
    inside = sorted({index for call in calls for index in call.inside})
    rest = max(case.record.seconds - waited, 1e-9)
    workers = max(2, min(_MOST, math.ceil(waited / rest)))
    left = max(0.0, waited / workers - rest)
    share = min(1.0, waited / case.record.seconds)
    yield Finding(
        NAME,
        f"{100 * share:.2g} % of the step is waiting for the data loader",
        f"DataLoader(…, num_workers={workers}, pin_memory=True): batches are then made while the "
        "step before computes.",
        calls[0].where,
        waited,
        min(case.record.seconds, max(0.0, waited - left)),
        "likely",
        [
            Evidence("seconds that it waits", waited, "s"),
            Evidence("seconds of the rest", rest, "s"),
            Evidence("workers", float(workers), ""),
        ],
        inside,
        "loading beside the computation, by so many workers",
    )
