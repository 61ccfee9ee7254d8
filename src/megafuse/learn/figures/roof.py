"""Rooflines: kernels under what memory and arithmetic allow, and the way that they moved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megafuse.learn.figures.axes import Scale, curve, decades, gridline, height, inset
from megafuse.learn.figures.drawing import (
    COLOURS,
    LINE,
    Figure,
    digits,
    made,
    percent,
    rate,
    require,
    text,
)

_PLOT = 300  # pixels between the ends of the y axis: points lie close together
_TOP = 2 * LINE  # above the plot: what the y axis is
_NEAR = (7, 20)  # percent across and pixels down within which two discs would meet on a phone
_Place = tuple[float, float]  # percent across, pixels down


@dataclass(frozen=True)
class Point:
    """A kernel on a roofline: operations per byte, and operations per second.

    `number` stands in its disc (default: its place in the list). `before` is where it stood at
    first. `bandwidth` is that of the copy it is held against, if that is not the roof's.
    """

    label: str
    intensity: float
    rate: float
    number: int | None = None
    before: Point | None = None
    bandwidth: float | None = None

    def share(self, bandwidth: float, peak: float) -> float:
        """Of the roof above it."""
        return self.rate / min(peak, (self.bandwidth or bandwidth) * self.intensity)


@dataclass(frozen=True)
class _Plot:
    """Both axes."""

    across: Scale
    up: Scale

    def at(self, intensity: float, per_second: float) -> _Place:
        return inset(self.across.at(intensity)), _TOP + height(self.up, per_second, _PLOT)

    def line(self, corners: Sequence[tuple[float, float]]) -> list[tuple[str, float]]:
        """Corners as `curve` takes them."""
        places = [self.at(*corner) for corner in corners]
        return [(percent(x), y) for x, y in places]


def roofline(
    title: str,
    caption: str,
    bandwidth: float,
    peak: float,
    points: Sequence[Point],
    trail: bool = False,
    one_thread: float = 0.0,
) -> Figure:
    """Operations per second against operations per byte, both logarithmic, under the roof.

    `bandwidth` is in bytes per second, `peak` in operations per second. With `trail` a line leads
    from each point to the next: one kernel, moving. `one_thread` is the bandwidth of a second
    slope, for kernels that run in one.
    """
    require(title, "the bandwidth", bandwidth, above_zero=True)
    require(title, "the peak", peak, above_zero=True)
    every = [each for point in points for each in (point, point.before) if each is not None]
    for point in every:
        require(title, f"{point.label}, operations per byte", point.intensity, above_zero=True)
        require(title, f"{point.label}, operations per second", point.rate, above_zero=True)
    plot = _plot(bandwidth, peak, every)
    drawing = [
        text("0", 13, "operations per second"),
        *(
            gridline(_TOP + height(plot.up, tick, _PLOT), rate(tick, "").rstrip())
            for tick in decades(plot.up)
        ),
        *_roofs(plot, bandwidth, peak, one_thread),
        *_moves(plot, points, trail),
        *_discs(plot, points),
        *_ticks(plot),
    ]
    legend = list(_legend(bandwidth, peak, points, one_thread))
    tall = _TOP + _PLOT + 2 * LINE + 6
    return made(title, caption, "".join(drawing), tall, " ".join(legend), legend)


def _plot(bandwidth: float, peak: float, every: Sequence[Point]) -> _Plot:
    """Axes on which the ridge and every point have room."""
    intensities = [peak / bandwidth, *(point.intensity for point in every)]
    across = Scale(min(intensities) / 4, max(intensities) * 4, True)
    rates = [point.rate for point in every]
    least = min([bandwidth * across.low, *rates])
    return _Plot(across, Scale(least / 2, 2 * max([peak, *rates]), True))


def _roofs(plot: _Plot, bandwidth: float, peak: float, slope: float) -> Iterator[str]:
    """The machine's roof; dashed, the slope that one thread has."""
    low, high = plot.across.low, plot.across.high
    whole = [(low, bandwidth * low), (peak / bandwidth, peak), (high, peak)]
    yield f'<g class="roofs">{curve(plot.line(whole))}</g>'
    if slope:
        least = max(low, plot.up.low / slope)
        (x1, y1), (x2, y2) = plot.line([(least, slope * least), (min(peak / slope, high), peak)])
        yield (
            f'<g class="roofs"><line x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" '
            'stroke="currentColor" stroke-dasharray="4 3" stroke-opacity="0.6"/></g>'
        )


def _moves(plot: _Plot, points: Sequence[Point], trail: bool) -> Iterator[str]:
    """Lines along which points moved: from their first place, or from the point before."""
    for i, (left, reached) in enumerate(itertools.pairwise(points), 1) if trail else ():
        yield _move(i, plot.at(left.intensity, left.rate), plot.at(reached.intensity, reached.rate))
    for i, point in enumerate(points):
        if point.before is not None:
            first = plot.at(point.before.intensity, point.before.rate)
            yield _move(i, first, plot.at(point.intensity, point.rate))
            yield (
                f'<g class="s{i % COLOURS}"><circle class="first" cx="{percent(first[0])}" '
                f'cy="{first[1]:.1f}" r="5" fill="none" stroke="currentColor" stroke-width="2"/>'
                "</g>"
            )


def _move(i: int, start: _Place, end: _Place) -> str:
    return (
        f'<g class="s{i % COLOURS}"><line class="move" x1="{percent(start[0])}" '
        f'y1="{start[1]:.1f}" x2="{percent(end[0])}" y2="{end[1]:.1f}" stroke="currentColor" '
        'stroke-width="2" stroke-opacity="0.7"/></g>'
    )


def _discs(plot: _Plot, points: Sequence[Point]) -> Iterator[str]:
    """Discs with the points' numbers; one that would lie on another stands beside it, and a dotted
    line leads to its place."""
    taken: list[_Place] = []
    for i, point in enumerate(points):
        at = plot.at(point.intensity, point.rate)
        across, down = _aside(at, taken)
        taken.append((at[0] + across * _NEAR[0], at[1] + down * _NEAR[1]))
        x, y = 20 * across, _NEAR[1] * down
        yield (
            f'<svg x="{percent(at[0])}" y="{at[1]:.1f}" overflow="visible">'
            f'<g class="s{i % COLOURS}">{_lead(x, y) if x or y else ""}'
            f'<circle class="mark" cx="{x}" cy="{y}" r="9" fill="currentColor"/></g>'
            f'<text class="number" x="{x}" y="{y + 4}" text-anchor="middle" font-size="11">'
            f"{point.number or i + 1}</text></svg>"
        )


def _lead(x: int, y: int) -> str:
    return (
        '<circle cx="0" cy="0" r="2.5" fill="currentColor"/>'
        f'<line x1="0" y1="0" x2="{x}" y2="{y}" stroke="currentColor" stroke-dasharray="1 2"/>'
    )


def _aside(at: _Place, taken: Sequence[_Place]) -> tuple[int, int]:
    """Steps across and down to the nearest room for a disc, within the plot; rather across: what
    is told of a kernel is how high it stands."""
    steps = itertools.product(range(-4, 5), repeat=2)
    for across, down in sorted(steps, key=lambda step: step[0] ** 2 + 5 * step[1] ** 2):
        x, y = at[0] + across * _NEAR[0], at[1] + down * _NEAR[1]
        free = all(abs(x - a) > _NEAR[0] - 0.01 or abs(y - b) > _NEAR[1] - 0.1 for a, b in taken)
        if free and inset(0) <= x <= inset(1) and _TOP <= y <= _TOP + _PLOT:
            return across, down
    return 0, 0


def _ticks(plot: _Plot) -> Iterator[str]:
    y = _TOP + _PLOT + LINE
    for tick in decades(plot.across):
        if 0.05 < plot.across.at(tick) < 0.95:
            yield text(percent(inset(plot.across.at(tick))), y, f"{tick:g}", "", "middle")
    yield text("100%", y + LINE, "operations per byte", "", "end")


def _legend(
    bandwidth: float, peak: float, points: Sequence[Point], one_thread: float
) -> Iterator[str]:
    yield f"Roof: {rate(bandwidth, 'B/s')} of memory, at most {rate(peak)}."
    if one_thread:
        yield f"Dashed: a copy in one thread, {rate(one_thread, 'B/s')}."
    for i, point in enumerate(points, 1):
        named, share = f"{point.number or i} {point.label}: ", point.share(bandwidth, peak)
        if point.before is None:
            stands = f"{digits(point.intensity)} per byte, {rate(point.rate)}, "
            yield f"{named}{stands}{share:.0%} of the roof"
        else:
            yield f"{named}{_gained(point, point.before)}; now {share:.0%} of the roof"


def _gained(point: Point, before: Point) -> str:
    """27× as fast, 16× the operations per byte"""
    faster, fewer = point.rate / before.rate, point.intensity / before.intensity
    told = f"{digits(faster)}× as fast"
    return told if 0.95 < fewer < 1.05 else f"{told}, {digits(fewer)}× the operations per byte"
