"""Findings that count: those that would bring more than noise, each second counted once."""

from __future__ import annotations

import math

from megafuse.diagnose.finding import Finding
from megafuse.diagnose.findings import FINDERS, ON_COMPILED, Case
from megafuse.diagnose.record import Record

_LEAST = 0.05  # of the call: less is not worth a change of the code
FACTS = ("graph break", "recompilation", "allocator retries")  # shown for what they are


def found(case: Case) -> list[Finding]:
    """The most important first."""
    least = threshold(case.record)
    claimed: set[int] = set()
    kept: list[Finding] = []
    for find in ON_COMPILED if case.record.compiled else FINDERS:
        for finding in find(case):
            left = _unclaimed(case, finding, claimed)
            finding.gain *= left
            if finding.name not in FACTS and not finding.gain >= least:
                continue
            claimed |= set(finding.operations)
            kept.append(finding)
    for finding in kept:
        finding.gain = min(finding.gain, case.record.seconds - _rest(case, finding))
        finding.call_gain = case.record.seconds / (case.record.seconds - finding.gain)
    return sorted(kept, key=lambda f: -f.gain)


def _rest(case: Case, finding: Finding) -> float:
    """Seconds that the call takes at least when the finding is mended: the work of the operations
    that it is not about, and one call where there is none."""
    mine = set(finding.operations)
    rest = sum(op.seconds for op in case.record.operations if op.index not in mine)
    least = max(rest, case.machine.call, 0.001 * case.record.seconds)
    return min(least, case.record.seconds)


def threshold(record: Record) -> float:
    """Seconds: a twentieth of the call, or what its median is known to, whichever is more."""
    # Three standard errors. Another program makes calls longer, never shorter: the nearer side of
    # the spread is the call's own.
    spread = 2 * min(record.seconds - record.low, record.high - record.seconds)
    unsure = 1.5 * max(0.0, spread) / math.sqrt(max(1, record.calls))
    return max(_LEAST * record.seconds, unsure)


def _unclaimed(case: Case, finding: Finding, claimed: set[int]) -> float:
    """The share of its operations' time that no finding before it has explained."""
    operations = [case.record.operations[i] for i in finding.operations]
    everything = sum(op.seconds + case.gap for op in operations)
    if not everything:
        return 1.0
    free = sum(op.seconds + case.gap for op in operations if op.index not in claimed)
    return free / everything
