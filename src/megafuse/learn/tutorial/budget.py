"""Step 2: how many operations come free with each float?"""

from __future__ import annotations

import functools

import torch

from megafuse.bench import Timing
from megafuse.learn import probes
from megafuse.learn.explain import seconds
from megafuse.learn.tutorial import draw
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import machine
from megafuse.learn.verdicts.rule import times
from megafuse.ops import OPS

TITLE = "The budget: operations per float"
MULTIPLY_ADDS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK = (0, 4, 32, 256)


def run(tour: Tour) -> None:
    screen = tour.screen
    screen.say(
        "While memory delivers one float and takes back another, the processor could be computing. "
        "How much? Divide the one rate by the other."
    )
    flops = OPS["gelu_scale"].flops
    assert not callable(flops)
    screen.say(machine.budget(tour.probes, flops[0]))
    if not tour.compiles:
        screen.say(
            "To see it happen takes a kernel that does more and more on the way, and that cannot "
            "be compiled here: `megafuse doctor` says what is missing."
        )
        return
    screen.say(
        "Now see it happen: a copy, with more and more multiply-adds done to each float on its "
        "way. If the budget is right, the first ones cost nothing."
    )
    guess = screen.guess("how many operations a float until the copy takes half as long again?")
    added, taken = measured(tour)
    screen.table(
        ("operations a float", "time, at best", "of the copy"),
        [
            (str(k), seconds(t.low), times(t.low / taken[0].low))
            for k, t in zip(added, taken, strict=True)
        ],
    )
    screen.say(machine.work(added, taken, tour.probes.operations_per_float))
    screen.recall(guess)
    tour.draw(lambda: draw.budget(added, [t.low for t in taken], tour.floats, tour.machine))


def measured(tour: Tour) -> tuple[list[int], list[Timing]]:
    """Operations a float, and the time that the copy took with them."""
    x = torch.randn(tour.floats, device=tour.device)
    out = torch.zeros_like(x)
    counts = QUICK if tour.quick else MULTIPLY_ADDS
    ways = {str(k): functools.partial(probes.work, x, out, k) for k in counts}
    taken = tour.time(ways, "copies that compute")
    return [2 * k for k in counts], [taken[str(k)] for k in counts]
