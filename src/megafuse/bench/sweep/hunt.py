"""The sweep: known cases, then random ones until the time is over; suspects are seen twice."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from megafuse.bench.sweep.case import Case
from megafuse.bench.sweep.compiling import Compiler
from megafuse.bench.sweep.look import Seen, look, look_again

LATER = 20  # cases between the two measurements of a suspect: a neighbour's noise has passed


@dataclass
class Loser:
    """A case that is behind by a clock, both times: the figures are those of the second."""

    seen: Seen
    clock: str
    other: str


@dataclass
class Found:
    """What a sweep found."""

    seen: list[Seen] = field(default_factory=list)
    losers: list[Loser] = field(default_factory=list)
    suspects: int = 0  # behind the first time
    stopped: bool = False

    @property
    def failed(self) -> list[Seen]:
        return [s for s in self.seen if s.failed]

    def count(self, *stages: str) -> int:
        return sum(s.stage in stages for s in self.seen)


@dataclass
class Watcher:
    """Is told how far a sweep is."""

    at: Callable[[Found, Case, str], None] = lambda *_: None
    found: Callable[[Loser], None] = lambda _: None
    failed: Callable[[Seen], None] = lambda _: None


def hunt(cases: Iterable[Case], device: str, seconds: float, watcher: Watcher) -> Found:
    """Looks at one case after the other until the time is over, the device is lost, or Ctrl-C."""
    found = Found()
    compiler = Compiler(seconds)
    waiting: deque[tuple[int, Seen]] = deque()
    end = time.perf_counter() + seconds
    try:
        for case in cases:
            if time.perf_counter() >= end:
                break
            watcher.at(found, case, "")
            seen = look(case, device, compiler)
            found.seen.append(seen)
            if seen.failed:
                watcher.failed(seen)
            if seen.lost:
                return found
            if seen.behind:
                found.suspects += 1
                waiting.append((len(found.seen) + LATER, seen))
            else:
                seen.functions = {}
            while waiting and waiting[0][0] <= len(found.seen):
                _confirm(waiting.popleft()[1], device, found, watcher)
        while waiting:  # the last ones, whatever the time
            _confirm(waiting.popleft()[1], device, found, watcher)
    except KeyboardInterrupt:
        found.stopped = True
    return found


def _confirm(seen: Seen, device: str, found: Found, watcher: Watcher) -> None:
    watcher.at(found, seen.case, "again")
    again = look_again(seen, device)
    seen.functions = again.functions = {}
    for clock, other in again.behind.items():
        if clock in seen.behind:
            found.losers.append(Loser(again, clock, other))
            watcher.found(found.losers[-1])
