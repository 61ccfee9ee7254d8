"""Step 4: the pointwise ladder, from naive to the shipped kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from megafuse.learn.explain import amount
from megafuse.learn.ladder import LADDERS, Ladder
from megafuse.learn.tutorial import blanks, draw, plain, roof, typed
from megafuse.learn.tutorial.climb import climb
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import ladder as verdicts
from megafuse.learn.verdicts import machine
from megafuse.ops import OPS

TITLE = "The first ladder: two operations, one pass"
SCALE = 1.7
COLUMNS = 1024


@dataclass(frozen=True)
class Chain:
    """Two pointwise operations, and how many a float they count."""

    ladder: Ladder
    written: str
    flops: int


GELU = Chain(LADDERS["gelu_scale"], "gelu(x)·scale", OPS["gelu_scale"].flops[0])  # type: ignore[index]
RELU = Chain(LADDERS["bias_act"], "relu(x + bias)", 2)


def run(tour: Tour) -> None:
    chain = _chosen(tour)
    x = torch.randn(tour.floats // COLUMNS, COLUMNS, device=tour.device)
    bias = torch.randn(COLUMNS, device=tour.device)
    arguments: tuple[Any, ...] = (x.flatten(), SCALE) if chain is GELU else (x, bias, "relu")
    tour.screen.say(
        f"{chain.written}, where x has {amount(x.numel())} floats. Each rung computes the same; "
        "what changes is how the data moves. Its bytes are counted, and at a copy's rate they say "
        "how long it should take."
    )
    if tour.compiles:
        rungs = chain.ladder.on(tour.device)
    else:
        tour.screen.say(plain.WHY)
        rungs = plain.gelu_scale()
    if chain is not GELU:
        tour.screen.say(
            f"First the same rungs in CUDA, for {GELU.written}; then {chain.written} is climbed "
            "here."
        )
    typed.fill_in(tour, blanks.POINTWISE, "gelu_scale")
    climbed = climb(tour, rungs, chain.ladder.exact(*arguments), *arguments)
    for sentence in verdicts.steps(climbed):
        tour.screen.say(sentence)
    tour.screen.say(verdicts.predictions(climbed, tour.device))
    tour.screen.say(verdicts.top(climbed))
    if tour.compiles:
        tour.screen.say(
            "The last rung is no demonstration: it is what your model calls. The sources of the "
            f"others lie in learn/ladder/kernels/{chain.ladder.name}/, a dozen lines each."
        )
    tour.draw(lambda: draw.rungs(f"{chain.written}, rung by rung", climbed, tour.machine))
    roof.ladder(tour, f"{chain.written}, under the roof", climbed, chain.flops * x.numel())


def _chosen(tour: Tour) -> Chain:
    """gelu·scale, unless its arithmetic takes longer than its bytes on this machine: then no pass
    that is saved would show, and a chain of fewer operations climbs."""
    if not tour.compiles or tour.device == "cuda":
        return GELU
    x = torch.randn(tour.floats, device=tour.device)
    there = torch.zeros_like(x)
    fused = GELU.ladder.rungs[-2]
    ways = {"copy": lambda: there.copy_(x), "fused": lambda: fused.run(x, SCALE)}
    taken = tour.time(ways, "whether gelu's arithmetic hides behind its bytes")
    if machine.hidden(taken["fused"], taken["copy"]):
        return GELU
    tour.screen.say(machine.chain(taken["fused"], taken["copy"]))
    return RELU
