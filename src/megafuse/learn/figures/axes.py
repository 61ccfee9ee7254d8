"""Where a value lies on an axis, and the marks along it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from megafuse.learn.figures.drawing import text

PLOT = 220  # pixels between the ends of a y axis


@dataclass(frozen=True)
class Scale:
    """Where a value lies between the ends of an axis, from 0 to 1."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float], logarithmic: bool) -> Scale:
        return cls(min(values), max(values), logarithmic)

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return 0.5 if high == low else (value - low) / (high - low)


def height(up: Scale, value: float, plot: int = PLOT) -> float:
    """Pixels below the upper end of an axis that is `plot` long."""
    return plot * (1 - up.at(value))


def inset(share: float) -> float:
    """Percent of the width; the axis' own numbers have the left part."""
    return 16 + 80 * share


def gridline(y: float, label: str) -> str:
    return (
        f'<line class="grid" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
        'stroke-opacity="0.25"/>' + text("0", y - 4, label)
    )


def ticks(most: float) -> list[float]:
    """Round numbers from zero to the first at or above `most`, about four."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f * 4 >= most * 0.999)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def decades(scale: Scale) -> list[float]:
    """Powers of ten on the axis, at most about six of them."""
    first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    return [10.0**n for n in range(first, last + 1, max(1, math.ceil((last - first) / 6)))]


def curve(places: Sequence[tuple[str, float]]) -> str:
    """Straight lines from place to place."""
    return "".join(
        f'<line class="curve" x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" '
        'stroke="currentColor" stroke-width="2"/>'
        for (x1, y1), (x2, y2) in itertools.pairwise(places)
    )
