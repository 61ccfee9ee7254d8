"""Data paths: each way from memory through its operations and back."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence

from megafuse.learn.figures.drawing import (
    CHARACTER,
    LINE,
    PHONE,
    Figure,
    made,
    percent,
    text,
    wrapped,
)


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
        for line in wrapped(f"{name}: {_times(reads, 'read')}, {_times(writes, 'write')}"):
            drawing.append(text("0", y + 13, line, "strong"))
            y += LINE
        y += 4
        for start in range(0, len(kernels), 4):  # more in a row would be too narrow for a phone
            row = kernels[start : start + 4]
            drawing.append(_row_of_kernels(row, y))
            y += 30 + 34 + _box_height(row) + 20
    return made(title, caption, "".join(drawing), y - 8, ", ".join(ways))


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
    widest = (PHONE // len(row) - 12) // CHARACTER
    lines = [""]
    for part in re.findall(r"[^\s_]*(?:_+|\s+|$)", kernel[0]):
        for piece in textwrap.wrap(part, widest, drop_whitespace=False):
            if len(lines[-1] + piece.rstrip()) > widest:
                lines.append("")
            lines[-1] += piece
    return [line.strip() for line in lines if line.strip()] or [""]


def _box_height(row: Sequence[Kernel]) -> int:
    return 16 + LINE * max(len(_lines_in_box(kernel, row)) for kernel in row)


def _row_of_kernels(row: Sequence[Kernel], y: int) -> str:
    """A band of memory, boxes below it, and an arrow for each time it is read or written."""
    drawing = [
        f'<rect class="memory" x="0" y="{y}" width="100%" height="26" rx="4" fill="currentColor"'
        ' fill-opacity="0.15"/>',
        text("50%", y + 18, "memory", "", "middle"),
    ]
    top, height, share = y + 60, _box_height(row), 100 / len(row)
    for i, kernel in enumerate(row):
        middle = share * (i + 0.5)
        lines = _lines_in_box(kernel, row)
        drawing.append(
            f'<g class="s0"><rect class="kernel" x="{percent(share * i + 1)}" y="{top}" '
            f'width="{percent(share - 2)}" height="{height}" rx="6" fill="none" '
            'stroke="currentColor" stroke-width="1.5"/></g>'
        )
        first = top + height / 2 - LINE * len(lines) / 2 + 13
        drawing += [
            text(percent(middle), first + LINE * k, line, "strong", "middle")
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
        f'<svg class="{look}" x="{percent(x)}" y="0" overflow="visible">'
        f'<path d="M0,{start}V{end + back}" stroke="currentColor" stroke-width="2"/>'
        f'<path d="M-4,{end + back}H4L0,{end}Z" fill="currentColor"/></svg>'
    )
