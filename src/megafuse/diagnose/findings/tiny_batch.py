"""tiny batch: weights are read from memory for a handful of rows; more rows would cost nothing."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.compiler.explained import size
from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, is_float, main_line, total
from megafuse.diagnose.record import Operation

NAME = "tiny batch"
_ROWS = 8  # as many as the prediction takes
_SHARE = 0.5  # of the call: below, the batch is not what binds


def find(case: Case) -> Iterator[Finding]:
    operations = [op for op in case.record.operations if _is_bound(op, case)]
    if not operations or case.share(total(operations)) < _SHARE:
        return
    rows = max(_rows(op) for op in operations)
    weights = sum(max(t.bytes for t in op.reads) for op in operations)
    where, lines = main_line(operations)
    each = case.gain(total(operations) * (1 - rows / (rows * _ROWS)))
    yield Finding(
        NAME,
        f"{size(weights)} of weights are read for {_count(rows)}",
        f"Gather requests and run {rows * _ROWS} rows at a time: the weights are read once for all "
        "of them. Or make them smaller: bfloat16, int8.",
        where,
        total(operations),
        each,
        "likely",
        [
            Evidence("rows", float(rows), ""),
            Evidence("bytes of weights", float(weights), "B"),
            Evidence("rate of reading them", weights / total(operations), "B/s"),
            Evidence("FLOPs for each byte", sum(op.flops for op in operations) / weights, ""),
        ],
        indices(operations),
        f"a row's share of a call with {rows * _ROWS} rows, which takes as long",
        lines,
    )


def _count(rows: int) -> str:
    return "a single row" if rows == 1 else f"{rows} rows"


def _is_bound(op: Operation, case: Case) -> bool:
    """The weight is nearly all that is read, and reading it takes longer than computing."""
    large = max((t for t in op.reads if is_float(t)), key=lambda t: t.bytes, default=None)
    if op.kind != "product" or large is None or not large.outside or case.tiny(op):
        return False
    rate = case.machine.flop_rate(large.dtype)
    computing = op.flops / rate if rate else 0.0
    reading = large.bytes / max(case.machine.read, case.machine.copy)
    few = _rows(op) <= 2 * _ROWS
    return few and large.bytes > 0.8 * op.bytes_moved and reading > 2 * computing


def _rows(op: Operation) -> int:
    """Of its result: all dimensions but the last."""
    out = max(op.writes, key=lambda t: t.bytes, default=None)
    if out is None:
        return 1
    count = 1
    for n in out.shape[:-1]:
        count *= n
    return count
