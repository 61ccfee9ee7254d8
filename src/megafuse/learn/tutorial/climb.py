"""A ladder, climbed: bytes counted, time predicted from them, then measured and checked."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megafuse.bench.timing import Timing, cache_bytes
from megafuse.learn.explain import kernels, mebibytes, megabytes, seconds
from megafuse.learn.ladder.rung import Rung
from megafuse.learn.ledger import Ledger
from megafuse.learn.pictures import timeline
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import ladder as verdicts


@dataclass(frozen=True)
class Climbed:
    """One rung after its measurement."""

    rung: Rung
    ledger: Ledger
    predicted: float  # seconds, from bytes and a copy's rate
    timing: Timing
    error: float  # the largest, against float64

    @property
    def seconds(self) -> float:
        return self.timing.median

    @property
    def rate(self) -> float:
        """Bytes from memory, a second."""
        return self.ledger.from_memory / self.seconds

    @property
    def predicted_rate(self) -> float:
        return self.ledger.from_memory / self.predicted


@dataclass(frozen=True)
class Climb:
    """The whole ladder, and the copy that was timed between its rungs."""

    rungs: tuple[Climbed, ...]
    roof: float  # bytes a second

    def share(self, rung: Climbed) -> float:
        """Of the roof."""
        return rung.rate / self.roof


def climb(tour: Tour, rungs: Sequence[Rung], exact: Tensor, *arguments: Any) -> Climb:
    """Counts, predicts, asks, measures, shows."""
    x: Tensor = arguments[0]
    there = torch.empty_like(x).fill_(0)
    moved = x.nbytes + there.nbytes
    copy = tour.time({"copy": lambda: there.copy_(x)}, "a copy")["copy"]
    rate = moved / copy.low
    ledgers = [rung.ledger(*arguments) for rung in rungs]
    tour.screen.say(
        f"A copy of x reads and writes {megabytes(moved)} and takes {seconds(copy.low)} at its "
        f"best: {rate / 1e9:.1f} GB/s. At that rate you should see:"
    )
    _predictions(tour, rungs, ledgers, rate)
    guess = tour.screen.guess("how many times faster is the last rung than the first?")

    ways = {rung.name: functools.partial(rung.run, *arguments) for rung in rungs}
    taken = tour.time({**ways, "copy": lambda: there.copy_(x)}, "all rungs, taking turns")
    climbed = Climb(
        tuple(
            Climbed(
                rung,
                ledger,
                ledger.from_memory / rate,
                taken[rung.name],
                float((rung.run(*arguments) - exact).abs().max()),
            )
            for rung, ledger in zip(rungs, ledgers, strict=True)
        ),
        moved / taken["copy"].low,
    )
    _show(tour, climbed)
    tour.screen.say(verdicts.guessed(guess, climbed.rungs[0].seconds / climbed.rungs[-1].seconds))
    return climbed


_LAUNCHES = (
    "A box is a launch, the bar after it is memory: what one launch writes, the next reads back."
)


def _predictions(tour: Tour, rungs: Sequence[Rung], ledgers: Sequence[Ledger], rate: float) -> None:
    tour.screen.items(
        (
            f"{rung.name}: {rung.changed(tour.device)}",
            f"about {seconds(ledger.from_memory / rate)}: {_moved(ledger)}, "
            f"{kernels(ledger.passes)}",
        )
        for rung, ledger in zip(rungs, ledgers, strict=True)
    )


def _moved(ledger: Ledger) -> str:
    """Bytes from memory; and those asked for, where a cache should hold some of them."""
    if ledger.from_memory == ledger.bytes_moved:
        return megabytes(ledger.from_memory)
    asked = megabytes(ledger.bytes_moved)
    return f"{megabytes(ledger.from_memory)} from memory of {asked} asked for"


def _show(tour: Tour, climbed: Climb) -> None:
    tour.screen.table(
        ("rung", "predicted", "measured", "4 of 5 in", "of roof", "largest\nerror"),
        [
            (
                f"{number}  {each.rung.name}",
                seconds(each.predicted),
                seconds(each.seconds),
                f"{seconds(each.timing.low)}–{seconds(each.timing.high)}",
                f"{climbed.share(each):.0%}",
                f"{each.error:.1e}",
            )
            for number, each in enumerate(climbed.rungs, 1)
        ],
    )
    launches = {each.rung.name: each.ledger.operations for each in climbed.rungs}
    tour.screen.drawing(timeline.text(launches, min(tour.screen.width, 78)).splitlines())
    tour.draw(lambda: timeline.figure("Launches, rung by rung", _LAUNCHES, launches))
    tour.screen.bars(
        [(each.rung.name, each.seconds, seconds(each.seconds)) for each in climbed.rungs]
    )
    tour.screen.note(
        "Median of calls that took turns, each with a cold cache and results in memory of its own. "
        "Of roof: its bytes from memory over its time, held against the fastest tenth of the "
        f"copies between them, {climbed.roof / 1e9:.1f} GB/s. What is asked for again before "
        f"{mebibytes(cache_bytes(tour.device))} have gone by, the size of the last cache, is taken "
        "to come from there. Error: against the same in float64."
    )
