"""recompilation, graph break: what is compiled is compiled again, or in pieces."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator

from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case
from megafuse.diagnose.record import Where

_BREAK = 30e-6  # seconds that leaving one graph and entering the next takes the host, at least


def find(case: Case) -> Iterator[Finding]:
    record = case.record
    if record.recompiled:
        yield Finding(
            "recompilation",
            f"it was compiled {record.recompiled} times again in {record.calls} calls",
            "Compile with dynamic=True, or mark what changes: torch._dynamo.mark_dynamic(x, 0); "
            "TORCH_LOGS=recompiles names the guard that failed.",
            record.where,
            record.seconds,
            max(0.0, record.seconds - record.busy),
            "sure",
            [
                Evidence("times compiled again", float(record.recompiled), ""),
                Evidence("seconds of a call", record.seconds, "s"),
                Evidence("seconds of its operations", record.busy, "s"),
            ],
            how="the operations' own time",
        )
    if record.graph_breaks:
        count = len(record.graph_breaks)
        where, reason = _place(record.graph_breaks[0])
        yield Finding(
            "graph break",
            f"the compiled function falls into {count + 1} graphs: {reason}",
            "Keep values on the device: torch.where instead of if, no .item() and no print inside; "
            "fullgraph=True turns breaks into errors.",
            where,
            record.seconds,
            max(count * _BREAK, 0.05 * record.seconds),
            "perhaps",
            [Evidence("graph breaks", float(count), "")],
            how="what leaving and entering a graph costs at least; what could be fused across the "
            "break comes on top",
        )


def _place(told: str) -> tuple[Where, str]:
    """From "file:line: reason"."""
    found = re.match(r"(.+?):(\d+): (.*)", told)
    if found is None:
        return Where(), told
    file, line = found[1], int(found[2])
    return Where(file, line, "", linecache.getline(file, line).strip()), found[3]
