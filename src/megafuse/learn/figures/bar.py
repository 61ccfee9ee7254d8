"""Horizontal bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megafuse.learn.figures.drawing import (
    LINE,
    WIDEST,
    Figure,
    digits,
    made,
    percent,
    require,
    text,
    wrapped,
)


@dataclass(frozen=True)
class Bar:
    """A value with a name; `note` is said instead of the value and its unit. `look` is a class of
    the report page."""

    label: str
    value: float
    note: str = ""
    look: str = "s0"


def bars(
    title: str, caption: str, values: Sequence[Bar], unit: str, roof: float | None = None
) -> Figure:
    """Horizontal bars from zero, and the roof as a dashed line."""
    if not values:
        raise ValueError(f"{title}: no bar to draw, expected at least one")
    for bar in values:
        require(title, bar.label, bar.value)
    longest = max([bar.value for bar in values] + [require(title, "the roof", roof or 0.0)]) or 1.0
    drawing, y, told = [], 0, []
    if roof is not None:
        drawing.append(text("0", 13, f"dashed: the roof, {digits(roof)} {unit}"))
        y = 26
    for bar in values:
        value = bar.note or f"{digits(bar.value)} {unit}"
        told.append(f"{bar.label} {value}")
        for left, right in _beside(bar.label, value):
            drawing.append(text("0", y + 13, left, "strong") if left else "")
            drawing.append(text("100%", y + 13, right, "", "end") if right else "")
            y += LINE
        drawing.append(
            f'<g class="{bar.look}"><rect class="fill" x="0" y="{y + 2}" height="12" rx="1.5" '
            f'width="{percent(100 * bar.value / longest)}" fill="currentColor"/></g>'
        )
        # Zero, beside the bar alone: through the labels it would cross their first letters.
        drawing.append(
            f'<line class="grid" x1="0" x2="0" y1="{y}" y2="{y + 16}" stroke="currentColor"/>'
        )
        if roof is not None:
            at = percent(100 * roof / longest)
            drawing.append(
                f'<line class="yard" x1="{at}" x2="{at}" y1="{y - 1}" y2="{y + 17}" '
                'stroke="currentColor" stroke-dasharray="3 2"/>'
            )
        y += 26
    return made(title, caption, "".join(drawing), y, "; ".join(told))


def _beside(label: str, value: str) -> Iterator[tuple[str, str]]:
    """Lines of text at the left and the right edge: one for both where they fit."""
    if len(label) + len(value) + 2 <= WIDEST:
        yield label, value
        return
    for line in wrapped(label):
        yield line, ""
    for line in wrapped(value):
        yield "", line
