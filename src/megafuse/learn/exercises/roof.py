"""How close a run comes to the roof: a copy of as many bytes, timed beside it. Told, not judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from megafuse.bench import compare
from megafuse.learn import explain
from megafuse.learn.exercises.findings import Finding

_BUDGET = 0.3  # seconds


def share(
    call: Callable[[], object],
    least_bytes: int,
    device: str,
    says: str = "",
    threads: int = 0,
    what: str = "of the roof",
) -> Finding:
    """`least_bytes`: what the task needs to move, so that needless bytes lower the share.

    A learner's loop runs in one thread, so that its copy does too (`threads`).
    """
    with using(threads):
        yours, copy = _timed(call, least_bytes, device)
    return Finding(
        what,
        None,
        f"{copy / yours:.0%}: {explain.seconds(yours)}; a copy of the least bytes takes "
        f"{explain.seconds(copy)}",
        says,
    )


@contextmanager
def using(threads: int) -> Iterator[None]:
    """torch's threads inside the block; 0 leaves them as they are."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads or usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _timed(call: Callable[[], object], least_bytes: int, device: str) -> tuple[float, float]:
    source = torch.ones(max(least_bytes // 8, 1), device=device)
    target = torch.empty_like(source).fill_(0)
    taken = compare(
        {"yours": lambda _: call(), "copy": lambda _: target.copy_(source)},
        device=device,
        clock="cold" if device == "cuda" else "warm",
        budget=_BUDGET,
        rounds=5,
    )
    return taken["yours"].median, taken["copy"].median
