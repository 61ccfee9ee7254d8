"""A roofline of text: where each kernel stands under the roof, and which way it moved.

operations per second
1 T │                    ______________
    │                 __／
    │              _／ 4
1 G │  1        2 3
    └──────────────────────────────────
      operations per byte
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from megafuse.learn.figures import Point

_WIDTH, _HEIGHT = 64, 12


def text(bandwidth: float, peak: float, points: Sequence[Point]) -> list[str]:
    """At most 80 columns; points are numbered in their order, the latest on top."""
    ridge = peak / bandwidth
    x = _span([ridge, *(p.intensity for p in points)])
    y = _span([peak, *(p.rate for p in points), *(bandwidth * p.intensity for p in points)])
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for column in range(_WIDTH):
        intensity = math.exp(x[0] + (x[1] - x[0]) * column / (_WIDTH - 1))
        rate = min(peak, bandwidth * intensity)
        row = _row(rate, y)
        if 0 <= row < _HEIGHT:
            rows[row][column] = "─" if rate == peak else "·"
    for number, point in enumerate(points, 1):
        row, column = _row(point.rate, y), _column(point.intensity, x)
        rows[min(max(row, 0), _HEIGHT - 1)][column] = str(number % 10)
    lines = ["operations per second (up), operations per byte (right); · memory, ─ arithmetic"]
    for number, drawn in enumerate(rows):
        label = _rate(math.exp(y[1])) if number == 0 else ""
        label = _rate(math.exp(y[0])) if number == _HEIGHT - 1 else label
        lines.append(f"{label:>8} │{''.join(drawn)}".rstrip())
    lines.append(" " * 9 + "└" + "─" * _WIDTH)
    lines.append(" " * 10 + f"{math.exp(x[0]):<8.2g}" + f"{math.exp(x[1]):>{_WIDTH - 8}.2g}")
    names = "  ".join(f"{number % 10} {point.label}" for number, point in enumerate(points, 1))
    return lines + textwrap.wrap(names, 78)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Logarithms a little beyond the ends."""
    return math.log(min(values) / 2), math.log(max(values) * 1.5)


def _row(rate: float, y: tuple[float, float]) -> int:
    return round((_HEIGHT - 1) * (y[1] - math.log(rate)) / (y[1] - y[0]))


def _column(intensity: float, x: tuple[float, float]) -> int:
    return round((_WIDTH - 1) * (math.log(intensity) - x[0]) / (x[1] - x[0]))


def _rate(value: float) -> str:
    for power, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{value / power:.3g} {prefix}"
    return f"{value:.3g}"
