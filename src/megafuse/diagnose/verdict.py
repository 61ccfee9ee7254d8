"""The verdict: what binds the call, how near it is to its roofs, and whether to leave it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from megafuse.diagnose.diagnosis import Verdict
from megafuse.diagnose.finding import Finding
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import Operation, Record

_WORDS = {
    "memory": "reading and writing memory",
    "cache": "reading and writing the cache",
    "compute": "arithmetic",
    "call": "calls that do little each",
    "compiled": "kernels that torch.compile made",
    "host": "Python and launching",
    "data": "waiting for data",
}


def verdict(record: Record, machine: Machine, findings: Sequence[Finding]) -> Verdict:
    spent: dict[str, float] = defaultdict(float)
    for op in record.operations:
        spent[op.roof or "call"] += op.seconds
    spent["data"] = sum(c.seconds for c in record.host_calls if c.kind == "data loader")
    spent["host"] = max(0.0, record.seconds - record.busy - spent["data"])
    binds = max(spent, key=lambda name: spent[name]) if record.seconds else "call"
    share = _share(record)
    most = f"Most of it is {_WORDS[binds]} ({100 * _of(spent[binds], record):.0f} %)."
    if findings:
        best = findings[0]
        return Verdict(False, binds, share, f"{most} First: {best.title}.")
    return Verdict(True, binds, share, _leave(record, machine, binds, share, most))


def _share(record: Record) -> float:
    """The least time that the roofs allow all operations, of the call's."""
    least = sum(op.floor for op in record.operations if op.kind != "view")
    return min(1.0, least / record.seconds) if record.seconds else 1.0


def _leave(record: Record, machine: Machine, binds: str, share: float, most: str) -> str:
    kinds: dict[str, list[Operation]] = defaultdict(list)
    for op in record.operations:
        if op.roof in _ROOFS and op.floor:
            kinds[op.short].append(op)
    if binds in ("host", "data", "call", "compiled") or not kinds:
        return f"Leave it. {most} Nothing that is known would bring more than noise."
    name, same = max(kinds.items(), key=lambda each: _seconds(each[1]))
    taken = _seconds(same)
    roof = max(same, key=lambda op: op.seconds).roof
    if roof == "compute":
        rate = f"{sum(op.flops for op in same) / taken / 1e9:.3g} GFLOP/s"
    else:
        rate = f"{sum(op.bytes_moved for op in same) / taken / 1e9:.3g} GB/s"
    near = min(1.0, sum(op.floor for op in same) / taken)
    return (
        f"Leave it: nothing that is known would bring more than noise. {name} takes "
        f"{100 * _of(taken, record):.0f} % of the time and runs at {rate}, "
        f"{100 * near:.0f} % of what this machine's {_ROOFS[roof]} can."
    )


def _seconds(operations: Sequence[Operation]) -> float:
    return sum(op.seconds for op in operations)


_ROOFS = {"memory": "memory", "cache": "cache", "compute": "arithmetic"}


def _of(seconds: float, record: Record) -> float:
    return min(1.0, seconds / record.seconds) if record.seconds else 0.0
