"""A run of the suite `models` in 80 columns: a table for each row, a line for each contender."""

from __future__ import annotations

from megafuse.bench.models.case import Case
from megafuse.bench.models.zoo import MODELS
from megafuse.bench.result import STEP, Entry, Result, Row, Span
from megafuse.bench.table import heading, note, seconds, size_of, times, wrapped

_NAME = 15
_COLUMNS = {  # title: width
    "step": 12,
    "": 6,
    "busy": 7,
    "kernels": 7,
    "memory": 7,
    "first": 6,
    "error": 6,
    "grads": 6,
}


def text(result: Result) -> str:
    lines = [heading(result), ""]
    for row in result.rows:
        lines += [*table(row), ""]
    return "\n".join([*lines, *legend(result)])


def table(row: Row) -> list[str]:
    about = f"{MODELS[row.op].about}: " if row.op in MODELS else ""
    lines = wrapped(f"{row.op} {row.label}, {row.dtype}, {row.mode} ({about.rstrip(': ')})")
    head = " ".join(f"{title:>{width}}" for title, width in _COLUMNS.items())
    lines += [f"{'':<{_NAME}} {head}", "─" * (_NAME + 1 + len(head))]
    for entry in row.entries:
        lines += _lines(row, entry)
    return lines + [n for words in row.warnings for n in note(words)]


def _lines(row: Row, entry: Entry) -> list[str]:
    if entry.error:
        return note(f"{entry.name}: {entry.error}")
    if STEP not in entry.times:
        return note(f"{entry.name}: left out, {entry.missing.get(STEP, 'not measured')}")
    return [f"{entry.name:<{_NAME}} " + " ".join(_cells(row, entry)).rstrip()]


def _cells(row: Row, entry: Entry) -> list[str]:
    ratio = row.speedups.get(entry.name, {}).get(STEP)
    sign = "≈" if ratio is not None and ratio.verdict == "ambiguous" else ""
    first = entry.first_call
    told = {
        "step": _spread(entry.times[STEP]),
        "": "" if ratio is None else sign + times(ratio.median),
        "busy": "" if entry.busy is None else seconds(entry.busy),
        "kernels": "" if entry.launches is None else str(entry.launches),
        "memory": "" if entry.peak_bytes is None else size_of(entry.peak_bytes),
        "first": "" if first is None else f"{first:.1f} s"[:6],
        "error": _off(entry, "outputs"),
        "grads": _off(entry, "gradients"),
    }
    return [f"{told[title]:>{width}}" for title, width in _COLUMNS.items()]


def _off(entry: Entry, kind: str) -> str:
    return f"{entry.off[kind]:.0e}" if kind in entry.off else ""


def _spread(span: Span) -> str:
    """12.3 ms ±4%; a spread that leaves no room is left out, and stands in the file."""
    half = (span.high - span.low) / 2 / span.median
    shown = f"{seconds(span.median)} ±{half:.0%}"
    return shown if len(shown) <= _COLUMNS["step"] else f"{seconds(span.median)} ±>1×"


def legend(result: Result) -> list[str]:
    entries = [e for row in result.rows for e in row.entries]
    on_gpu = result.machine["device"] == "cuda"
    together = max((e.side_by_side for e in entries), default=1)
    beside = f", while up to {together} processes did so side by side" if together > 1 else ""
    parts = [
        "step: median of steps back to back, ± half of the spread; then how many times optimize's "
        "that is, ≈ where the spreads overlap.",
        "busy: the GPU's own time in a step." if on_gpu else "",
        f"kernels: launches in a step{'' if on_gpu else ', and on a CPU operations'}.",
        f"first: seconds to the first result, compilers' caches empty{beside}.",
        "error, grads: largest error of the outputs and of the gradients against float64, as a "
        "share of the largest value.",
    ]
    lines = [line for part in parts for line in wrapped(part)]
    warm = [e for e in entries if e.first_call_warm is not None]
    for name in dict.fromkeys(e.name for e in warm):
        most = max(e.first_call_warm or 0.0 for e in warm if e.name == name)
        lines += wrapped(f"{name}: first result with filled caches within {most:.1f} s.")
    stopped = ", stopped before the end" if result.stopped else ""
    return [*lines, f"{_rows(len(result.rows))} in {result.seconds_taken:.0f} s{stopped}"]


def announced(cases: list[Case], contenders: list[str], jobs: int) -> list[str]:
    beside = f", {jobs} prepare side by side" if jobs > 1 else ""
    return wrapped(f"{_rows(len(cases))}, {len(contenders)} contenders each{beside}")


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"
