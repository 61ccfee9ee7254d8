"""Drawings of text: data paths and bars, for any width and any encoding."""

from __future__ import annotations

import codecs
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper

# As wide as what they stand for, so that drawings and tables keep their shape.
_PLAIN = dict(zip("─│┌┐└┘▶█▌×·−–≈µ…²√π", "-|++++>#=x*--~u.2vp", strict=True))


def plain_where_needed() -> None:
    """A terminal whose encoding has no "─" or "×" gets "-" and "x": no traceback, few "?"."""

    def stand_in(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        missing = error.object[error.start : error.end]
        return "".join(_PLAIN.get(character, "?") for character in missing), error.end

    codecs.register_error("megafuse-plain", stand_in)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="megafuse-plain")


def path(stops: Sequence[str], width: int) -> list[str]:
    """Boxes with arrows between them; where they do not fit, the names alone."""
    top, middle, bottom = "", "", ""
    for i, stop in enumerate(stops):
        arrow = "──▶" if i else ""
        gap = " " * len(arrow)
        rule = "─" * (len(stop) + 2)
        top += f"{gap}┌{rule}┐"
        middle += f"{arrow}│ {stop} │"
        bottom += f"{gap}└{rule}┘"
    if len(middle) <= width:
        return [top, middle, bottom]
    return textwrap.wrap(" ─▶ ".join(stops), width)


@dataclass(frozen=True)
class Bar:
    """A line of a bar chart: what is said before the bar and after it."""

    label: str
    value: float
    text: str


def bars(values: Sequence[Bar], width: int) -> list[str]:
    """Bars from zero, the longest as long as the width allows."""
    label = max(len(bar.label) for bar in values)
    text = max(len(bar.text) for bar in values)
    room = max(width - label - text - 4, 1)
    longest = max(bar.value for bar in values) or 1.0
    lines = []
    for bar in values:
        halves = round(2 * room * bar.value / longest)
        drawn = "█" * (halves // 2) + "▌" * (halves % 2)
        lines.append(f"{bar.label:<{label}}  {drawn or '▌':<{room}}  {bar.text:>{text}}")
    return lines
