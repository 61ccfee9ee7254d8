"""A roofline of text: where each kernel stands under the roof, and which way it moved.

1 T │                    ______________
    │                 __/
    │              _/ ∘∘4
1 G │  1∘∘∘∘∘∘∘∘2∘3∘
    └──────────────────────────────────
      operations    a byte   a second  of roof  moved by
    1 naive            0.5      1.2 G      12%
    2 coalesced        0.5      3.6 G      36%  ↑ 3×
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megafuse.learn.figures import Point

_WIDTH, _HEIGHT = 64, 12
_TELLING = 1.05  # a move by less than this is not told
_HEAD = "operations per second (up), operations per byte (right); · memory, ─ arithmetic"


@dataclass(frozen=True)
class _Plot:
    """Logarithms at the ends of both axes."""

    x: tuple[float, float]
    y: tuple[float, float]

    def row(self, rate: float) -> int:
        return round((_HEIGHT - 1) * (self.y[1] - math.log(rate)) / (self.y[1] - self.y[0]))

    def column(self, intensity: float) -> int:
        return round((_WIDTH - 1) * (math.log(intensity) - self.x[0]) / (self.x[1] - self.x[0]))

    def at(self, point: Point) -> tuple[int, int]:
        return min(max(self.row(point.rate), 0), _HEIGHT - 1), self.column(point.intensity)


def text(bandwidth: float, peak: float, points: Sequence[Point]) -> list[str]:
    """At most 80 columns. Points are numbered in their order, a line of ∘ leads from each to the
    next, and below the picture stands where each is and how far it moved."""
    rates = [peak, *(p.rate for p in points), *(bandwidth * p.intensity for p in points)]
    plot = _Plot(_span([peak / bandwidth, *(p.intensity for p in points)]), _span(rates))
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    _roof(plot, rows, bandwidth, peak)
    for one, other in itertools.pairwise(map(plot.at, points)):
        for row, column in _between(one, other):
            rows[row][column] = "∘"
    for number, point in enumerate(points, 1):
        row, column = plot.at(point)
        rows[row][column] = str(number % 10)
    told = _told(points, bandwidth, peak)
    return [_HEAD, *_framed(plot, rows), *filter(None, told)]


def _roof(plot: _Plot, rows: list[list[str]], bandwidth: float, peak: float) -> None:
    for column in range(_WIDTH):
        intensity = math.exp(plot.x[0] + (plot.x[1] - plot.x[0]) * column / (_WIDTH - 1))
        rate = min(peak, bandwidth * intensity)
        row = plot.row(rate)
        if 0 <= row < _HEIGHT:
            rows[row][column] = "─" if rate == peak else "·"


def _between(one: tuple[int, int], other: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The cells of a straight line, without its ends."""
    steps = max(abs(one[0] - other[0]), abs(one[1] - other[1]))
    for step in range(1, steps):
        at = step / steps
        yield round(one[0] + at * (other[0] - one[0])), round(one[1] + at * (other[1] - one[1]))


def _framed(plot: _Plot, rows: list[list[str]]) -> Iterator[str]:
    ends = {0: _short(math.exp(plot.y[1])), _HEIGHT - 1: _short(math.exp(plot.y[0]))}
    for number, drawn in enumerate(rows):
        yield f"{ends.get(number, ''):>8} │{''.join(drawn)}".rstrip()
    yield " " * 9 + "└" + "─" * _WIDTH
    left, right = (math.exp(end) for end in plot.x)
    yield " " * 10 + f"{left:<8.2g}" + f"{right:>{_WIDTH - 8}.2g}"


def _told(points: Sequence[Point], bandwidth: float, peak: float) -> Iterator[str]:
    """A line for each: its place, its share of the roof, and the move from the one before it."""
    name = min(max((len(p.label) for p in points), default=0), 24)
    head = f"{'a byte':>8} {'a second':>10} {'of roof':>8}"
    yield f"  {'operations':<{name}} {head}  moved by" if points else ""
    before = None
    for number, point in enumerate(points, 1):
        stands = f"{point.intensity:>8.2g} {_short(point.rate):>10} "
        stands += f"{point.share(bandwidth, peak):>8.0%}"
        yield f"{number % 10} {point.label[:24]:<{name}} {stands}  {_moved(before, point)}".rstrip()
        before = point


def _moved(before: Point | None, point: Point) -> str:
    """↑ 3.0× → 2.0×: operations a second, and operations a byte, over those of the one before."""
    if before is None:
        return ""
    up, right = point.rate / before.rate, point.intensity / before.intensity
    return " ".join(filter(None, (_arrow(up, "↑↓"), _arrow(right, "→←"))))


def _arrow(ratio: float, signs: str) -> str:
    if max(ratio, 1 / ratio) < _TELLING:
        return ""
    return f"{signs[0]} {ratio:.3g}×" if ratio > 1 else f"{signs[1]} {1 / ratio:.3g}×"


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Logarithms a little beyond the ends."""
    return math.log(min(values) / 2), math.log(max(values) * 1.5)


def _short(value: float) -> str:
    for power, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.3g} {prefix}"
    return f"{value:.3g}"
