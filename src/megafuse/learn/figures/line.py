"""Curves over a logarithmic axis."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from megafuse.learn.figures.axes import PLOT, Scale, curve, gridline, height, inset, ticks
from megafuse.learn.figures.drawing import (
    CHARACTER,
    COLOURS,
    LINE,
    PHONE,
    WIDEST,
    Figure,
    amount,
    digits,
    made,
    percent,
    require,
    text,
)


def lines(
    title: str,
    caption: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    looks: Sequence[str] = (),
) -> Figure:
    """Curves over a logarithmic x axis; y begins at zero. `looks` are classes of the report page,
    for each curve; else they have its colours in order."""
    if not x or not series:
        raise ValueError(f"{title}: nothing to draw, expected values of x and at least one series")
    for value in x:
        require(title, x_label, value, above_zero=True)
    for name, values in series.items():
        if len(values) != len(x):
            raise ValueError(f"{title}: {name} has {len(values)} values for {len(x)} of x")
        for value in values:
            require(title, name, value)
    across = Scale.of(x, logarithmic=True)
    marked = ticks(max(v for values in series.values() for v in values))
    looks = looks or [f"s{i % COLOURS}" for i in range(len(series))]
    legend, y = _legend(series, looks)
    drawing = [legend, text("0", y + 13, y_label)]
    y += 2 * LINE
    up = Scale(0.0, marked[-1], False)
    for tick in marked:
        drawing.append(gridline(y + height(up, tick), digits(tick)))
    for look, values in zip(looks, series.values(), strict=True):
        places = [
            (percent(inset(across.at(a))), y + height(up, b))
            for a, b in sorted(zip(x, values, strict=True))
        ]
        drawing.append(f'<g class="{look}">{curve(places)}{_marks(places)}</g>')
    y += PLOT + LINE
    drawing += [text(at, y, tick, "", anchor) for at, tick, anchor in _x_ticks(x, across)]
    drawing.append(text("100%", y + LINE, x_label, "", "end"))
    told = "; ".join(
        f"{name} " + ", ".join(f"{digits(v)} at {amount(a)}" for a, v in zip(x, vs, strict=True))
        for name, vs in series.items()
    )
    return made(title, caption, "".join(drawing), y + LINE + 6, told)


def _legend(names: Iterable[str], looks: Sequence[str]) -> tuple[str, int]:
    """A line for each name, wrapped, and how high they are together."""
    drawing, y = [], 0
    for look, name in zip(looks, names, strict=True):
        drawing.append(
            f'<g class="{look}"><circle cx="6" cy="{y + 9}" r="4.5" fill="currentColor"/></g>'
        )
        for line in textwrap.wrap(name, WIDEST - 3) or [""]:
            drawing.append(text("18", y + 13, line))
            y += LINE
    return "".join(drawing), y + 6


def _marks(places: Sequence[tuple[str, float]]) -> str:
    return "".join(
        f'<circle class="mark" cx="{x}" cy="{y:.1f}" r="4" fill="currentColor"/>' for x, y in places
    )


def _x_ticks(x: Sequence[float], across: Scale) -> Iterator[tuple[str, str, str]]:
    """Place, text and anchor: the ends, and those between that keep their distance."""
    room = 100 * 9 * CHARACTER / PHONE
    values = sorted(set(x))
    taken: list[float] = []
    for value in [values[0], *values[:0:-1]][: len(values)]:
        at = inset(across.at(value))
        if all(abs(at - other) >= room for other in taken):
            taken.append(at)
            anchor = "middle" if 15 < at < 85 else "start" if at <= 15 else "end"
            yield percent(at), amount(value), anchor
