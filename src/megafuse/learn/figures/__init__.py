"""Pictures from numbers, as SVG inside an HTML page: data paths, bars, rooflines, lines.

They follow the width they are given and keep their text at its size: horizontal places are in
percent, vertical ones in pixels, and text that could meet other text has a line of its own.
Colours are classes of the report page; without them everything takes the colour of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megafuse.bench import report
from megafuse.learn.figures.bar import Bar, bars
from megafuse.learn.figures.drawing import Figure
from megafuse.learn.figures.drawing import made as drawn
from megafuse.learn.figures.line import lines
from megafuse.learn.figures.paths import data_paths
from megafuse.learn.figures.roof import Point, roofline

__all__ = ["Bar", "Figure", "Point", "bars", "data_paths", "drawn", "lines", "roofline", "write"]


def write(path: str | Path, figures: Sequence[Figure], heading: str) -> None:
    """The report page with these figures. One of that name stays whole until the new one is."""
    report.save(report.page([], [], figures=figures, heading=heading), path)
