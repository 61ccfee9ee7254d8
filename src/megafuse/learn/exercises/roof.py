"""How close a run comes to the roof: a copy of as many bytes, timed beside it. Told, not judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from megafuse.bench import Timing, compare
from megafuse.learn.exercises.findings import Finding, Run
from megafuse.learn.verdicts import exercises as verdicts

_BUDGET = 0.3  # seconds


def share(
    call: Callable[[], object],
    least_bytes: int,
    device: str,
    says: str = "",
    threads: int = 0,
    what: str = "of the roof",
    kept: bool = True,
    operations: float = 0,
    moved: float | None = None,
) -> Finding:
    """`least_bytes`: what the task needs to move, so that needless bytes lower the share.

    A learner's loop runs in one thread, so that its copy does too (`threads`). Its time is `kept`
    as what they want to make smaller. With its `operations`, and the bytes that it really `moved`,
    it has a place on a roofline.
    """
    with using(threads):
        yours, copy = timed(call, least_bytes, device)
    found = verdicts.share(yours, copy)
    number, unit = (yours.median, "s") if kept else (None, "")
    asked = least_bytes if moved is None else moved
    rate = least_bytes / copy.median
    run = Run(device, operations, asked, yours.median, rate, threads) if operations else None
    return Finding(what, None, found, says, number=number, unit=unit, run=run)


@contextmanager
def using(threads: int) -> Iterator[None]:
    """torch's threads inside the block; 0 leaves them as they are."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads or usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def timed(call: Callable[[], object], least_bytes: int, device: str) -> tuple[Timing, Timing]:
    """The call, and a copy of so many bytes, taking turns."""
    source = torch.ones(max(least_bytes // 8, 1), device=device)
    target = torch.empty_like(source).fill_(0)
    taken = compare(
        {"yours": lambda _: call(), "copy": lambda _: target.copy_(source)},
        device=device,
        clock="cold" if device == "cuda" else "warm",
        budget=_BUDGET,
        rounds=5,
    )
    return taken["yours"], taken["copy"]
