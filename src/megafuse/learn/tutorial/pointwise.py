"""Step 4: the pointwise ladder, from naive to the shipped kernel."""

from __future__ import annotations

import torch

from megafuse.learn.explain import amount
from megafuse.learn.ladder import LADDERS
from megafuse.learn.tutorial import draw, plain, words
from megafuse.learn.tutorial.climb import climb
from megafuse.learn.tutorial.tour import Tour

TITLE = "The first ladder: gelu(x)·scale"
SCALE = 1.7


def run(tour: Tour) -> None:
    ladder = LADDERS["gelu_scale"]
    x = torch.randn(tour.floats, device=tour.device)
    tour.screen.say(
        f"x has {amount(x.numel())} floats. Each rung computes the same; what changes is how the "
        "data moves. Its bytes are counted, so its time can be foretold."
    )
    if tour.compiles:
        rungs = ladder.on(tour.device)
    else:
        tour.screen.say(plain.WHY)
        rungs = plain.gelu_scale()
    climbed = climb(tour, rungs, ladder.exact(x, SCALE), x, SCALE)
    for sentence in words.steps(climbed):
        tour.screen.say(sentence)
    tour.screen.say(words.predictions(climbed))
    tour.screen.say(words.top(climbed))
    if tour.compiles:
        tour.screen.say(
            "The last rung is no demonstration: it is what your model calls. The sources of the "
            "others lie in learn/ladder/kernels/gelu_scale/, a dozen lines each."
        )
    tour.draw(lambda: draw.rungs("gelu(x)·scale, rung by rung", climbed, tour.machine))
    flops = ladder.op.cost(x, SCALE, "tanh").flops
    tour.draw(lambda: draw.roofline("Under the roof", climbed, flops, tour.probes, tour.machine))
