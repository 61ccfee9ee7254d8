"""A Diagnosis in words, at 80 columns: the call, the verdict, then three lines a finding."""

from __future__ import annotations

import textwrap

from megafuse.compiler.explained import count, size
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.finding import Evidence, Finding, Trial

WIDTH = 80


def text(found: Diagnosis) -> str:
    """The whole of it."""
    lines = [*_call(found), ""]
    if found.verdict.leave_it:
        lines += _wrapped(found.verdict.sentence)
    for at, finding in enumerate(found.findings, 1):
        lines += [*_finding(at, finding, found), ""]
    for note in found.record.notes:
        lines += _wrapped(f"note: {note}")
    return "\n".join(lines).rstrip("\n")


def _call(found: Diagnosis) -> list[str]:
    record = found.record
    spread = f"{_number(record.low, record.seconds)}–{_number(record.high, record.seconds)}"
    head = f"{record.name}, {record.mode}, on {found.machine.name}"
    unit = "launch" if record.device == "cuda" else "operation"
    number = record.launches
    did = f"{number} {unit}{'' if number == 1 else 'es' if unit == 'launch' else 's'}"
    parts = [
        f"{seconds(record.seconds)} a call ({spread}, {count(record.calls, 'sample')})",
        did,
        f"{size(record.bytes_moved)} moved",
        f"{quantity(float(record.flops), 'FLOP')}",
    ]
    share = f"{percent(found.verdict.roof_share)} of the roofs"
    return [*_wrapped(head), *_wrapped(", ".join([*parts, share]))]


def _finding(at: int, finding: Finding, found: Diagnosis) -> list[str]:
    after = found.record.seconds - finding.gain
    gain = f"{seconds(found.record.seconds)} → {seconds(after)}, {times(finding.call_gain)}"
    if finding.trial is not None:
        gain += f"; {_tried(finding.trial, finding, found)}"
    head = f"{at}. {finding.name}, {finding.where}: predicted {gain}"
    told = [*_wrapped(head, "   ")]
    names = {found.record.operations[i].short for i in finding.operations}
    told += _wrapped(_sentence(finding.title, names), "   ", "   ")
    return told + _wrapped(shortened(finding.advice), "   ", "   ")


def _tried(trial: Trial, finding: Finding, found: Diagnosis) -> str:
    before, after = found.record.seconds, finding.measured(found.record)
    if after is None:
        return f"tried: {trial.error or 'too short to be timed'}"
    return f"tried {seconds(after)}, {times(before / after)}"


def shortened(advice: str) -> str:
    """What fits a line, up to the end of a part of the sentence; the page has all of it."""
    if len(advice) <= WIDTH - 3:
        return advice
    ends = [advice.rfind(mark, 0, WIDTH - 4) for mark in (". ", "; ", ": ", ", ")]
    first = next((end for end in ends if end > 20 and not _opens(advice[:end])), -1)
    return advice[:first] + "." if first > 0 else advice


def _opens(text: str) -> bool:
    """Whether it ends within brackets."""
    return text.count("(") != text.count(")")


def _wrapped(line: str, indent: str = "", first: str = "") -> list[str]:
    return textwrap.wrap(line, WIDTH, initial_indent=first, subsequent_indent=indent,
                         break_on_hyphens=False)  # fmt: skip


def _sentence(title: str, names: set[str]) -> str:
    """With a capital, unless it begins with an operation's name."""
    first = title.split()[0]
    return f"{title if first in names else title[0].upper() + title[1:]}."


# ---- numbers


def seconds(value: float) -> str:
    """4.21 ms"""
    scale, unit = _scale(value)
    return f"{value * scale:.3g} {unit}"


def _number(value: float, like: float) -> str:
    """In the unit that another one is shown in."""
    scale, _ = _scale(like)
    return f"{value * scale:.3g}"


def _scale(value: float) -> tuple[float, str]:
    if value >= 1:
        return 1.0, "s"
    return (1e3, "ms") if value >= 1e-3 else (1e6, "µs")


def times(ratio: float) -> str:
    """1.3×, 46×"""
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def percent(share: float) -> str:
    """93 %, 0.08 %"""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def quantity(value: float, unit: str) -> str:
    """67.1 GFLOP/s"""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def shown(evidence: Evidence) -> str:
    """its rate: 1.2 GFLOP/s"""
    if evidence.unit == "s":
        return f"{evidence.name}: {seconds(evidence.value)}"
    if evidence.unit in ("B", "B/s", "FLOP/s"):
        return f"{evidence.name}: {quantity(evidence.value, evidence.unit)}"
    return f"{evidence.name}: {evidence.value:.3g}{f' {evidence.unit}' if evidence.unit else ''}"
