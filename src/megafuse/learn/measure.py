"""The demo's measurements: two ways to one result, and copies to hold them against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megafuse.bench import Ratio, Timing, compare, speedup
from megafuse.bench.timing import Clock

Way = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Measured:
    """One size: how long each way took, and two copies of as many floats."""

    size: int
    separate: Timing
    fused: Timing
    copy: Timing  # into memory that is already there
    clone: Timing  # into fresh memory, as every operation writes its result

    @property
    def gain(self) -> Ratio:
        return speedup(self.separate, self.fused)


@dataclass(frozen=True)
class Calls:
    """Seconds of a call among many in a row, launches included: on one float, and on `size`; and
    on `size` by one thread, where there are more."""

    size: int
    separate_one: float
    fused_one: float
    separate: float
    fused: float
    separate_alone: float | None = None


def copy(size: int, device: str, budget: float) -> float:
    """Seconds for a copy into fresh memory: the yardstick of a prediction."""
    x = torch.randn(size, device=device)
    clock: Clock = "cold" if device == "cuda" else "warm"
    (taken,) = compare(
        {"": lambda _: x.clone()}, device=device, clock=clock, budget=budget
    ).values()
    return taken.median


def at_size(separate: Way, fused: Way, size: int, device: str, budget: float) -> Measured:
    """Both ways and both copies, taking turns."""
    x = torch.randn(size, device=device)
    there = torch.empty_like(x)
    taken = compare(
        {
            "separate": lambda _: separate(x),
            "fused": lambda _: fused(x),
            "copy": lambda _: there.copy_(x),
            "clone": lambda _: x.clone(),
        },
        device=device,
        clock="cold" if device == "cuda" else "warm",
        budget=budget,
    )
    return Measured(size, *taken.values())


def calls(separate: Way, fused: Way, size: int, device: str, budget: float) -> Calls:
    """What a call costs when there is next to nothing to compute."""
    single, small = torch.ones(1, device=device), torch.randn(size, device=device)
    taken = compare(
        {
            "separate, one float": lambda _: separate(single),
            "fused, one float": lambda _: fused(single),
            "separate": lambda _: separate(small),
            "fused": lambda _: fused(small),
        },
        device=device,
        clock="wall",
        budget=budget,
    )
    one, one_fused, many, many_fused = (timing.median for timing in taken.values())
    return Calls(size, one, one_fused, many, many_fused, _alone(separate, small, budget))


def _alone(separate: Way, x: Tensor, budget: float) -> float | None:
    """The same on one thread: what is left of the time where no other has to be woken."""
    threads = torch.get_num_threads()
    if x.is_cuda or threads == 1:
        return None
    torch.set_num_threads(1)
    try:
        (taken,) = compare(
            {"": lambda _: separate(x)}, device="cpu", clock="wall", budget=budget / 4
        ).values()
    finally:
        torch.set_num_threads(threads)
    return taken.median


def errors(separate: Way, fused: Way, size: int, device: str) -> tuple[float, float]:
    """The largest error of each way against the separate one in float64."""
    x = torch.randn(size, device=device)
    exact = separate(x.double())
    ours, theirs = (float((way(x) - exact).abs().max()) for way in (fused, separate))
    return theirs, ours
