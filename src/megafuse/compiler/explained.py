"""An Explanation in words, at 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from megafuse.compiler.explain import Explanation, Pass, Step

WIDTH = 80


def text(found: Explanation) -> str:
    """The whole of it."""
    if found.not_fused:
        why = [f"    {line}" for line in found.not_fused.splitlines()]
        what = "cannot be fused, and a call is this error:" if found.raises else ""
        what = what or "is not fused, and runs as it is:"
        return "\n".join([f"{found.function} {what}", *why])
    lines = _wrapped(f"{found.function}({', '.join(found.arguments)}) on {found.device}", 0)
    for each in (found.forward, found.backward):
        if each is not None:
            lines += ["", *_pass(each)]
    if found.backward is not None:
        lines += ["", *_kept(found)]
    return "\n".join(lines)


def _pass(shown: Pass) -> list[str]:
    lines = [f"{shown.name}: {_sum(shown)}"]
    for at, step in enumerate(shown.steps, 1):
        lines += _step(at, step)
    if shown.cuts:
        lines += ["  stored between steps:"]
    for cut in shown.cuts:
        lines += _wrapped(f"{cut.value}: {cut.reason}", 4)
        if cut.line:
            lines += _wrapped(cut.line, 6)
    return lines


def _sum(shown: Pass) -> str:
    mine = f"{_count(shown.launches, 'step')}, {size(shown.bytes_moved)}"
    if shown.eager is None:
        return mine
    theirs = f"{_count(shown.eager.launches, 'operation')}, {size(shown.eager.bytes_moved)}"
    return f"{mine} (eager: {theirs})"


def _step(at: int, step: Step) -> list[str]:
    kinds = {"rows": "one kernel, row by row", "pointwise": "one kernel, element by element"}
    lines = [f"  {at}  {step.name}: {kinds.get(step.kind, 'by the library')}"]
    if step.reason:
        lines += _wrapped(f"why: {step.reason}", 5)
    for line in step.lines:
        lines += _wrapped(line, 7)
    lines += _wrapped(f"reads  {size(step.bytes_read):>8}: {_listed(step.reads)}", 5)
    lines += _wrapped(f"writes {size(step.bytes_written):>8}: {_listed(step.writes)}", 5)
    if step.sums:
        lines += _wrapped(f"adds up, without storing the terms: {_listed(step.sums)}", 5)
    return lines


def _kept(found: Explanation) -> list[str]:
    if found.saved:
        what = f"{size(found.saved_bytes)} ({_listed(found.saved)})"
    else:
        what = "nothing but arguments and results"
    lines = _wrapped(f"saved for the backward: {what}", 0)
    if found.recomputed:
        lines += _wrapped(f"computed again in the backward: {_listed(found.recomputed)}", 0)
    return lines


def size(count: int) -> str:
    """16.8 MB"""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(
        line, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4)
    )
