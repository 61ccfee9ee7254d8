"""An Explanation in words, at 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megafuse.compiler.explain import Explanation, Pass, Step

WIDTH = 80


def text(found: Explanation) -> str:
    """The whole of it."""
    if found.not_fused:
        why = [f"    {line}" for line in found.not_fused.splitlines()]
        what = "cannot be fused, and a call is this error:" if found.raises else ""
        what = what or "is not fused, and runs as it is:"
        return "\n".join([f"{found.function} {what}", *why])
    lines = wrapped(f"{found.function}({', '.join(found.arguments)}) on {found.device}", 0)
    for each in (found.forward, found.backward):
        if each is not None:
            lines += ["", *pass_lines(each)]
    if found.backward is not None:
        lines += ["", *_kept(found)]
    return "\n".join(lines)


def pass_lines(shown: Pass) -> list[str]:
    """Its steps one by one, and what is stored between them."""
    lines = [f"{shown.name}: {_sum(shown)}"]
    for at, step in enumerate(shown.steps, 1):
        lines += _step(at, step)
    if shown.cuts:
        lines += ["  stored between steps:"]
    for cut in shown.cuts:
        lines += wrapped(f"{cut.value}: {cut.reason}", 4)
        if cut.line:
            lines += wrapped(cut.line, 6)
    return lines


def _sum(shown: Pass) -> str:
    mine = f"{count(shown.launches, 'step')}, {size(shown.bytes_moved)}"
    if shown.eager is None:
        return mine
    theirs = f"{count(shown.eager.launches, 'operation')}, {size(shown.eager.bytes_moved)}"
    return f"{mine} (eager: {theirs})"


def _step(at: int, step: Step) -> list[str]:
    kinds = {"rows": "one kernel, row by row", "pointwise": "one kernel, element by element"}
    lines = [f"  {at}  {step.name}: {kinds.get(step.kind, 'by the library')}"]
    if step.reason:
        lines += wrapped(f"why: {step.reason}", 5)
    for line in step.lines:
        lines += wrapped(line, 7)
    lines += wrapped(f"reads  {size(step.bytes_read):>8}: {listed(step.reads)}", 5)
    lines += wrapped(f"writes {size(step.bytes_written):>8}: {listed(step.writes)}", 5)
    if step.sums:
        lines += wrapped(f"adds up, without storing the terms: {listed(step.sums)}", 5)
    return lines


def _kept(found: Explanation) -> list[str]:
    if found.saved:
        what = f"{size(found.saved_bytes)} ({listed(found.saved)})"
    else:
        what = "nothing but arguments and results"
    lines = wrapped(f"saved for the backward: {what}", 0)
    if found.recomputed:
        lines += wrapped(f"computed again in the backward: {listed(found.recomputed)}", 0)
    return lines


def size(count: int) -> str:
    """16.8 MB"""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def count(number: int, what: str) -> str:
    """3 kernels"""
    return f"{number} {what}" + ("s" if number != 1 else "")


def listed(names: Iterable[str]) -> str:
    """a, b"""
    return ", ".join(names) or "nothing"


def wrapped(line: str, indent: int) -> list[str]:
    """In lines that fit."""
    return textwrap.wrap(
        line, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4)
    )
