"""A time line of launches: each operation is a box, and after each one memory.

    before  mul▕add▕sigmoid▕mul▕   4 launches
    now     gate▕                  1 launch

A line is cut where it is too long; the number of launches stands at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from megafuse.learn import figures
from megafuse.learn.figures import Figure

_WIDTH = 78
_BOX, _MEMORY = 26, 1.6  # pixels that a box is high; percent that memory after it is wide


def text(ways: Mapping[str, Sequence[str]], width: int = _WIDTH) -> str:
    """A line for each way, cut where it is too long; every box ends in a trip to memory."""
    name = max(map(len, ways))
    lines = []
    for label, operations in ways.items():
        count = f"{len(operations)} launch{'es' * (len(operations) != 1)}"
        room = width - name - len(count) - 5
        drawn, left = "", len(operations)
        for operation in operations:
            box = f"{_short(operation)}▕"
            if len(drawn) + len(box) > room - 2:
                drawn += "…"
                break
            drawn += box
            left -= 1
        lines.append(f"{label:<{name}}  {drawn:<{room}} {count}")
    return "\n".join(lines)


def _short(name: str) -> str:
    """exercise_0f1a… is the learner's own kernel."""
    return "yours" if name.startswith("exercise_") else name


# ---- for a page


def figure(title: str, caption: str, ways: Mapping[str, Sequence[str]]) -> Figure:
    """A row of boxes for each way, one for each launch, and memory after each."""
    most = max(len(operations) for operations in ways.values())
    drawing, y, told = [], 0, []
    for label, operations in ways.items():
        count = f"{len(operations)} launch{'es' * (len(operations) != 1)}"
        told.append(f"{label}: {count}, {', '.join(map(_short, operations))}")
        drawing.append(f'<text class="strong" x="0" y="{y + 13}" fill="currentColor">')
        drawing.append(f"{escape(label)}</text>")
        drawing.append(f'<text x="100%" y="{y + 13}" text-anchor="end" fill="currentColor">')
        drawing.append(f"{count}</text>")
        drawing += [_box(i, _short(name), 100 / most, y + 20) for i, name in enumerate(operations)]
        y += _BOX + 34
    return figures.drawn(title, caption, "".join(drawing), y - 8, "; ".join(told))


def _box(place: int, name: str, share: float, y: int) -> str:
    left, width = place * share, share - _MEMORY - 0.4
    return (
        f'<g class="s0"><rect class="kernel" x="{left:.3f}%" y="{y}" width="{width:.3f}%" '
        f'height="{_BOX}" rx="5" fill="none" stroke="currentColor" stroke-width="1.5"/></g>'
        f'<rect class="trip" x="{left + width + 0.4:.3f}%" y="{y}" width="{_MEMORY}%" '
        f'height="{_BOX}" fill="currentColor" fill-opacity="0.3"/>'
        f'<text class="strong" x="{left + width / 2:.3f}%" y="{y + 17}" text-anchor="middle" '
        f'fill="currentColor">{escape(name)}</text>'
    )
