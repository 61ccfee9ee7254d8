"""Step 5: the reduction ladder, LayerNorm."""

from __future__ import annotations

import torch

from megafuse.learn.ladder import LADDERS
from megafuse.learn.tutorial import blanks, draw, plain, roof, typed
from megafuse.learn.tutorial.climb import climb
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import ladder as verdicts
from megafuse.ops import OPS

TITLE = "The second ladder: LayerNorm"
COLUMNS = 1024
EPS = 1e-5
FLOPS = OPS["layer_norm"].flops[0]  # type: ignore[index]


def run(tour: Tour) -> None:
    ladder = LADDERS["layer_norm"]
    x = torch.randn(tour.floats // COLUMNS, COLUMNS, device=tour.device)
    weight, bias = (torch.randn(COLUMNS, device=tour.device) for _ in range(2))
    tour.screen.say(
        f"A row's mean needs the whole row, its variance needs the mean, its result needs both. "
        f"Written as it is defined, that is three passes over x, {len(x):,} rows of {COLUMNS:,} "
        "floats. But a row is small: who keeps it at hand reads it once."
    )
    if tour.compiles:
        rungs = ladder.on(tour.device)
    else:
        tour.screen.say(plain.WHY)
        rungs = plain.layer_norm()
    for rung in ladder.rungs:
        if tour.compiles and tour.device == "cpu" and not rung.on_cpu:
            tour.screen.say(f"(On a GPU there is a rung more, {rung.name}. {rung.change_on_cpu}.)")
    arguments = (x, weight, bias, EPS)
    typed.fill_in(tour, blanks.REDUCTION, "layer_norm")
    climbed = climb(tour, rungs, ladder.exact(*arguments), *arguments)
    for sentence in verdicts.steps(climbed):
        tour.screen.say(sentence)
    tour.screen.say(verdicts.predictions(climbed, tour.device))
    tour.screen.say(verdicts.sums(climbed))
    tour.screen.say(verdicts.top(climbed))
    tour.draw(lambda: draw.rungs("LayerNorm, rung by rung", climbed, tour.machine))
    roof.ladder(tour, "LayerNorm, under the roof", climbed, FLOPS * x.numel())
