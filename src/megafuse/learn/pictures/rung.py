"""A rung of a ladder, drawn: what moves, what is reused, what waits.

The drawing of kernels/gelu_scale/1_naive.cu is kernels/gelu_scale/1_naive.txt; that of the op
itself is kernels/gelu_scale/shipped.txt.
"""

from __future__ import annotations

from html import escape

from megafuse.learn.figures import Figure
from megafuse.learn.ladder import launch


def text(file: str) -> str:
    """At most 80 columns."""
    return (launch.KERNELS / f"{file}.txt").read_text(encoding="utf-8").rstrip()


def shipped(op: str) -> str:
    """The name under which the drawing of the op itself is found."""
    return f"{op}/shipped"


def figure(file: str, title: str, below: Figure | None = None) -> Figure:
    """For a page: the drawing, and below it a picture of its accesses."""
    drawn = f'<pre class="drawing">{escape(text(file))}</pre>'
    if below is None:
        return Figure(title, "What moves, what is reused and what waits.", drawn)
    return Figure(title, below.caption, drawn + below.svg, below.legend)
