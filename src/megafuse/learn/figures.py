"""Pictures from numbers, as SVG inside an HTML page: data paths, bars, rooflines, lines.

They follow the width they are given and keep their text at its size: horizontal places are in
percent, vertical ones in pixels, and text that could meet other text has a line of its own.
Colours are classes of the report page; without them everything takes the colour of the text.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from megafuse.bench import report
from megafuse.bench.table import count

# A phone leaves a figure about 296 pixels; 7 are room for a character of the page's 13 pixels.
_PHONE = 296
_CHARACTER = 7
_LINE = 18
_WIDEST = _PHONE // _CHARACTER
_COLOURS = 8
_PLOT = 220  # pixels between the ends of a y axis


@dataclass(frozen=True)
class Figure:
    """A picture with its title, and below it what to see in it."""

    title: str
    caption: str
    svg: str

    def _repr_html_(self) -> str:
        """In a notebook."""
        return f"<b>{escape(self.title)}</b>{self.svg}<p>{escape(self.caption)}</p>"


@dataclass(frozen=True)
class Bar:
    """A value with a name; `note` is said instead of the value and its unit. `look` is a class of
    the report page."""

    label: str
    value: float
    note: str = ""
    look: str = "s0"


@dataclass(frozen=True)
class Point:
    """A kernel on a roofline: operations per byte, and operations per second."""

    label: str
    intensity: float
    rate: float


def write(path: str | Path, figures: Sequence[Figure], heading: str) -> None:
    """The report page with these figures. One of that name stays whole until the new one is."""
    report.save(report.page([], [], figures=figures, heading=heading), path)


def drawn(title: str, caption: str, drawing: str, height: float, told: str) -> Figure:
    """A picture of one's own: SVG inside, percent across and pixels down; `told` is read aloud."""
    return _figure(title, caption, drawing, height, told)


# ---- data paths


def data_paths(title: str, caption: str, ways: Mapping[str, Sequence[str]]) -> Figure:
    """Each way from memory through its operations and back.

    Names between two stops called "memory" are one box: what is in it passes values on without
    memory.
    """
    if not ways:
        raise ValueError(f"{title}: no way to draw, expected at least one")
    drawing, y = [], 0
    for name, stops in ways.items():
        kernels = _kernels(title, name, stops)
        reads, writes = sum(k[1] for k in kernels), sum(k[2] for k in kernels)
        for line in _wrapped(f"{name}: {_times(reads, 'read')}, {_times(writes, 'write')}"):
            drawing.append(_text("0", y + 13, line, "strong"))
            y += _LINE
        y += 4
        for start in range(0, len(kernels), 4):  # more in a row would be too narrow for a phone
            row = kernels[start : start + 4]
            drawing.append(_row_of_kernels(row, y))
            y += 30 + 34 + _box_height(row) + 20
    return _figure(title, caption, "".join(drawing), y - 8, ", ".join(ways))


Kernel = tuple[str, bool, bool]  # what it computes; reads memory; writes memory


def _kernels(title: str, name: str, stops: Sequence[str]) -> list[Kernel]:
    """The runs of operations between stops at the memory."""
    runs: list[list[str]] = [[]]
    for stop in stops:
        if stop == "memory":
            runs.append([])
        else:
            runs[-1].append(stop)
    last = len(runs) - 1
    kernels = [(", ".join(run), i > 0, i < last) for i, run in enumerate(runs) if run]
    if not kernels:
        raise ValueError(f"{title}: the way {name!r} has no operation")
    return kernels


def _times(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _lines_in_box(kernel: Kernel, row: Sequence[Kernel]) -> list[str]:
    """Wrapped at spaces, and after the underscores of a name that is too long."""
    widest = (_PHONE // len(row) - 12) // _CHARACTER
    lines = [""]
    for part in re.findall(r"[^\s_]*(?:_+|\s+|$)", kernel[0]):
        for piece in textwrap.wrap(part, widest, drop_whitespace=False):
            if len(lines[-1] + piece.rstrip()) > widest:
                lines.append("")
            lines[-1] += piece
    return [line.strip() for line in lines if line.strip()] or [""]


def _box_height(row: Sequence[Kernel]) -> int:
    return 16 + _LINE * max(len(_lines_in_box(kernel, row)) for kernel in row)


def _row_of_kernels(row: Sequence[Kernel], y: int) -> str:
    """A band of memory, boxes below it, and an arrow for each time it is read or written."""
    drawing = [
        f'<rect class="memory" x="0" y="{y}" width="100%" height="26" rx="4" fill="currentColor"'
        ' fill-opacity="0.15"/>',
        _text("50%", y + 18, "memory", "", "middle"),
    ]
    top, height, share = y + 60, _box_height(row), 100 / len(row)
    for i, kernel in enumerate(row):
        middle = share * (i + 0.5)
        lines = _lines_in_box(kernel, row)
        drawing.append(
            f'<g class="s0"><rect class="kernel" x="{_percent(share * i + 1)}" y="{top}" '
            f'width="{_percent(share - 2)}" height="{height}" rx="6" fill="none" '
            'stroke="currentColor" stroke-width="1.5"/></g>'
        )
        first = top + height / 2 - _LINE * len(lines) / 2 + 13
        drawing += [
            _text(_percent(middle), first + _LINE * k, line, "strong", "middle")
            for k, line in enumerate(lines)
        ]
        if kernel[1]:
            drawing.append(_arrow(middle - share / 6, y + 28, top - 2, "s1"))
        if kernel[2]:
            drawing.append(_arrow(middle + share / 6, top - 2, y + 28, "s1"))
    return "".join(drawing)


def _arrow(x: float, start: float, end: float, look: str) -> str:
    back = -6 if end > start else 6
    return (
        f'<svg class="{look}" x="{_percent(x)}" y="0" overflow="visible">'
        f'<path d="M0,{start}V{end + back}" stroke="currentColor" stroke-width="2"/>'
        f'<path d="M-4,{end + back}H4L0,{end}Z" fill="currentColor"/></svg>'
    )


# ---- bars


def bars(
    title: str, caption: str, values: Sequence[Bar], unit: str, roof: float | None = None
) -> Figure:
    """Horizontal bars from zero, and the roof as a dashed line."""
    if not values:
        raise ValueError(f"{title}: no bar to draw, expected at least one")
    for bar in values:
        _require(title, bar.label, bar.value)
    longest = max([bar.value for bar in values] + [_require(title, "the roof", roof or 0.0)]) or 1.0
    drawing, y, told = [], 0, []
    if roof is not None:
        drawing.append(_text("0", 13, f"dashed: the roof, {_figures(roof)} {unit}"))
        y = 26
    first = y
    for bar in values:
        value = bar.note or f"{_figures(bar.value)} {unit}"
        told.append(f"{bar.label} {value}")
        for left, right in _beside(bar.label, value):
            drawing.append(_text("0", y + 13, left, "strong") if left else "")
            drawing.append(_text("100%", y + 13, right, "", "end") if right else "")
            y += _LINE
        drawing.append(
            f'<g class="{bar.look}"><rect class="fill" x="0" y="{y + 2}" height="12" rx="1.5" '
            f'width="{_percent(100 * bar.value / longest)}" fill="currentColor"/></g>'
        )
        if roof is not None:
            at = _percent(100 * roof / longest)
            drawing.append(
                f'<line class="yard" x1="{at}" x2="{at}" y1="{y - 1}" y2="{y + 17}" '
                'stroke="currentColor" stroke-dasharray="3 2"/>'
            )
        y += 26
    drawing.append(
        f'<line class="grid" x1="0" x2="0" y1="{first}" y2="{y - 10}" stroke="currentColor"/>'
    )
    return _figure(title, caption, "".join(drawing), y, "; ".join(told))


def _beside(label: str, value: str) -> Iterator[tuple[str, str]]:
    """Lines of text at the left and the right edge: one for both where they fit."""
    if len(label) + len(value) + 2 <= _WIDEST:
        yield label, value
        return
    for line in _wrapped(label):
        yield line, ""
    for line in _wrapped(value):
        yield "", line


# ---- lines


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
        _require(title, x_label, value, above_zero=True)
    for name, values in series.items():
        if len(values) != len(x):
            raise ValueError(f"{title}: {name} has {len(values)} values for {len(x)} of x")
        for value in values:
            _require(title, name, value)
    across = _Scale.of(x, logarithmic=True)
    ticks = _ticks(max(v for values in series.values() for v in values))
    looks = looks or [f"s{i % _COLOURS}" for i in range(len(series))]
    legend, y = _legend(series, looks)
    drawing = [legend, _text("0", y + 13, y_label)]
    y += 2 * _LINE
    up = _Scale(0.0, ticks[-1], False)
    for tick in ticks:
        drawing.append(_gridline(y + _height(up, tick), _figures(tick)))
    for look, values in zip(looks, series.values(), strict=True):
        places = [
            (_percent(_inset(across.at(a))), y + _height(up, b))
            for a, b in sorted(zip(x, values, strict=True))
        ]
        drawing.append(f'<g class="{look}">{_curve(places)}{_marks(places)}</g>')
    y += _PLOT + _LINE
    drawing += [_text(at, y, tick, "", anchor) for at, tick, anchor in _x_ticks(x, across)]
    drawing.append(_text("100%", y + _LINE, x_label, "", "end"))
    told = "; ".join(
        f"{name} " + ", ".join(f"{_figures(v)} at {_amount(a)}" for a, v in zip(x, vs, strict=True))
        for name, vs in series.items()
    )
    return _figure(title, caption, "".join(drawing), y + _LINE + 6, told)


def _legend(names: Iterable[str], looks: Sequence[str]) -> tuple[str, int]:
    """A line for each name, wrapped, and how high they are together."""
    drawing, y = [], 0
    for look, name in zip(looks, names, strict=True):
        drawing.append(
            f'<g class="{look}"><circle cx="6" cy="{y + 9}" r="4.5" fill="currentColor"/></g>'
        )
        for line in textwrap.wrap(name, _WIDEST - 3) or [""]:
            drawing.append(_text("18", y + 13, line))
            y += _LINE
    return "".join(drawing), y + 6


def _curve(places: Sequence[tuple[str, float]]) -> str:
    return "".join(
        f'<line class="curve" x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" '
        'stroke="currentColor" stroke-width="2"/>'
        for (x1, y1), (x2, y2) in itertools.pairwise(places)
    )


def _marks(places: Sequence[tuple[str, float]]) -> str:
    return "".join(
        f'<circle class="mark" cx="{x}" cy="{y:.1f}" r="4" fill="currentColor"/>' for x, y in places
    )


def _x_ticks(x: Sequence[float], across: _Scale) -> Iterator[tuple[str, str, str]]:
    """Place, text and anchor: the ends, and those between that keep their distance."""
    room = 100 * 9 * _CHARACTER / _PHONE
    values = sorted(set(x))
    taken: list[float] = []
    for value in [values[0], *values[:0:-1]][: len(values)]:
        at = _inset(across.at(value))
        if all(abs(at - other) >= room for other in taken):
            taken.append(at)
            anchor = "middle" if 15 < at < 85 else "start" if at <= 15 else "end"
            yield _percent(at), _amount(value), anchor


# ---- roofline


def roofline(
    title: str, caption: str, bandwidth: float, peak: float, points: Sequence[Point]
) -> Figure:
    """Operations per second against operations per byte, both logarithmic, under the roof.

    `bandwidth` is in bytes per second, `peak` in operations per second.
    """
    _require(title, "the bandwidth", bandwidth, above_zero=True)
    _require(title, "the peak", peak, above_zero=True)
    for point in points:
        _require(title, f"{point.label}, operations per byte", point.intensity, above_zero=True)
        _require(title, f"{point.label}, operations per second", point.rate, above_zero=True)
    ridge = peak / bandwidth
    intensities = [ridge, *(p.intensity for p in points)]
    across = _Scale(min(intensities) / 4, max(intensities) * 4, True)
    least = min([bandwidth * across.low, *(p.rate for p in points)])
    up = _Scale(least / 2, 2 * max([peak, *(p.rate for p in points)]), True)
    y = 2 * _LINE
    drawing = [_text("0", 13, "operations per second")]
    for tick in _decades(up):
        drawing.append(_gridline(y + _height(up, tick), _rate(tick, "").rstrip()))
    roof = [(across.low, bandwidth * across.low), (ridge, peak), (across.high, peak)]
    corners = [(_percent(_inset(across.at(a))), y + _height(up, b)) for a, b in roof]
    drawing.append(f'<g class="roofs">{_curve(corners)}</g>')
    drawing += [_numbered(i, points, across, up, y) for i in range(len(points))]
    y += _PLOT + _LINE
    drawing += [
        _text(_percent(_inset(across.at(tick))), y, f"{tick:g}", "", "middle")
        for tick in _decades(across)
        if 0.05 < across.at(tick) < 0.95
    ]
    y += _LINE
    drawing.append(_text("100%", y, "operations per byte", "", "end"))
    legend = [f"Roof: {_rate(bandwidth, 'B/s')} of memory, at most {_rate(peak)}."]
    for i, p in enumerate(points):
        share = p.rate / min(peak, bandwidth * p.intensity)
        legend.append(
            f"{i + 1} {p.label}: {_figures(p.intensity)} per byte, {_rate(p.rate)}, "
            f"{share:.0%} of the roof"
        )
    y += 8
    for line in (part for text in legend for part in _wrapped(text)):
        drawing.append(_text("0", y + 13, line))
        y += _LINE
    return _figure(title, caption, "".join(drawing), y, " ".join(legend))


def _numbered(i: int, points: Sequence[Point], across: _Scale, up: _Scale, y: int) -> str:
    """A disc with the point's number, moved aside where an earlier one is."""
    places = [(_inset(across.at(p.intensity)), y + _height(up, p.rate)) for p in points[: i + 1]]
    at, height = places[-1]
    near = sum(abs(at - x) < 7 and abs(height - h) < 20 for x, h in places[:-1])
    aside = 20 * near * (-1 if at > 60 else 1)
    return (
        f'<svg x="{_percent(at)}" y="{height:.1f}" overflow="visible">'
        f'<g class="s{i % _COLOURS}"><circle class="mark" cx="{aside}" cy="0" r="9" '
        'fill="currentColor"/></g>'
        f'<text class="number" x="{aside}" y="4" text-anchor="middle" font-size="11">'
        f"{i + 1}</text></svg>"
    )


# ---- axes


@dataclass(frozen=True)
class _Scale:
    """Where a value lies between the ends of an axis, from 0 to 1."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float], logarithmic: bool) -> _Scale:
        return cls(min(values), max(values), logarithmic)

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return 0.5 if high == low else (value - low) / (high - low)


def _height(up: _Scale, value: float) -> float:
    return _PLOT * (1 - up.at(value))


def _inset(share: float) -> float:
    """Percent of the width; the axis' own numbers have the left part."""
    return 16 + 80 * share


def _gridline(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
        'stroke-opacity="0.25"/>' + _text("0", y - 4, label)
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from zero to the first at or above `most`, about four."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f * 4 >= most * 0.999)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def _decades(scale: _Scale) -> list[float]:
    """Powers of ten on the axis, at most about six of them."""
    first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    return [10.0**n for n in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]


# ---- text


def _figure(title: str, caption: str, drawing: str, height: float, told: str) -> Figure:
    label = escape(f"{title}: {told}")
    svg = (
        f'<svg class="figure" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="100%" height="{height:.0f}" font-size="13" overflow="visible">{drawing}</svg>'
    )
    return Figure(title, caption, svg)


def _text(x: str, y: float, text: str, look: str = "", anchor: str = "start") -> str:
    look = f' class="{look}"' if look else ""
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y:.1f}"{look}{anchor} fill="currentColor">{escape(text)}</text>'


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDEST) or [""]


def _percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def _figures(value: float) -> str:
    """Three figures, and commas between thousands."""
    if value and abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _amount(value: float) -> str:
    """16 Mi, 500 K; rounded where that is long."""
    exact = count(int(value)) if value == int(value) else ""
    return exact if 0 < len(exact) < 8 else _rate(value, "").rstrip()


def _rate(value: float, unit: str = "FLOP/s") -> str:
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{_figures(value / power)} {prefix}{unit}"
    return f"{_figures(value)} {unit}"


def _require(title: str, name: str, value: float, above_zero: bool = False) -> float:
    """The value, if a figure can show it."""
    if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
        least = "above zero" if above_zero else "from zero up"
        raise ValueError(f"{title}: {name} is {value}, expected a finite number {least}")
    return value
