"""The reader's kernel under this machine's roof, moving rung by rung: in terminal and page."""

from __future__ import annotations

from collections.abc import Sequence

from megafuse.learn import figures
from megafuse.learn.figures import Point
from megafuse.learn.pictures import roofline
from megafuse.learn.tutorial.climb import Climb
from megafuse.learn.tutorial.tour import Tour


def ladder(tour: Tour, title: str, climbed: Climb, flops: int) -> None:
    """Each rung, and those before it."""
    tour.screen.say(
        "The same under the roof: each rung is a number, and a line leads from the one before. "
        "Fewer bytes from memory move a kernel to the right, better use of memory moves it up."
    )
    points = [
        Point(each.rung.name, flops / each.ledger.from_memory, flops / each.seconds)
        for each in climbed.rungs
    ]
    show(tour, title, climbed.roof, points, "the copy that was timed with the rungs")


def show(tour: Tour, title: str, bandwidth: float, points: Sequence[Point], slope: str) -> None:
    """`slope` says what the roof's memory part is."""
    peak = tour.probes.arithmetic
    tour.screen.drawing(roofline.text(bandwidth, peak, points))
    tour.draw(
        lambda: figures.roofline(
            title,
            f"On {tour.machine}. The slope is {slope}, the flat part arithmetic in registers. "
            "Fewer bytes move a kernel to the right, better use of the machine moves it up.",
            bandwidth,
            peak,
            points,
            trail=True,
        )
    )
