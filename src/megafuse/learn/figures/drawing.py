"""What every figure is made of: its frame, its text, and numbers as words."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from megafuse.bench.table import count

# A phone leaves a figure about 296 pixels; 7 are room for a character of the page's 13 pixels.
PHONE = 296
CHARACTER = 7
LINE = 18
WIDEST = PHONE // CHARACTER
COLOURS = 8


@dataclass(frozen=True)
class Figure:
    """A picture with its title, and below it what to see in it."""

    title: str
    caption: str
    svg: str
    legend: tuple[str, ...] = ()  # below the picture, a line each

    def _repr_html_(self) -> str:
        """In a notebook."""
        told = "".join(f"<li>{escape(line)}</li>" for line in self.legend)
        listed = f"<ul>{told}</ul>" if told else ""
        return f"<b>{escape(self.title)}</b>{self.svg}{listed}<p>{escape(self.caption)}</p>"


def made(
    title: str,
    caption: str,
    drawing: str,
    height: float,
    told: str,
    legend: Sequence[str] = (),
) -> Figure:
    """A picture of one's own: SVG inside, percent across and pixels down; `told` is read aloud."""
    label = escape(f"{title}: {told}")
    svg = (
        f'<svg class="figure" xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="100%" height="{height:.0f}" font-size="13" overflow="visible">{drawing}</svg>'
    )
    return Figure(title, caption, svg, tuple(legend))


def text(x: str, y: float, text: str, look: str = "", anchor: str = "start") -> str:
    look = f' class="{look}"' if look else ""
    anchor = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y:.1f}"{look}{anchor} fill="currentColor">{escape(text)}</text>'


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDEST) or [""]


def percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


def digits(value: float) -> str:
    """Three figures, and commas between thousands."""
    if value and abs(value) < 1e-3:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def amount(value: float) -> str:
    """16 Mi, 500 K; rounded where that is long."""
    exact = count(int(value)) if value == int(value) else ""
    return exact if 0 < len(exact) < 8 else rate(value, "").rstrip()


def rate(value: float, unit: str = "FLOP/s") -> str:
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power:
            return f"{digits(value / power)} {prefix}{unit}"
    return f"{digits(value)} {unit}"


def require(title: str, name: str, value: float, above_zero: bool = False) -> float:
    """The value, if a figure can show it."""
    if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
        least = "above zero" if above_zero else "from zero up"
        raise ValueError(f"{title}: {name} is {value}, expected a finite number {least}")
    return value
