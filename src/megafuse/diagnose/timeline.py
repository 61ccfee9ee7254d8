"""When operations ran, undisturbed: from torch's profiler, in calls that nothing else watches.

The watch knows the operations and their tensors, but it slows the host. The profiler's events of
the same call come in the same order, so that each operation gets the times of its event, and each
kernel goes to the operation that was running on the host when it was launched.
"""

from __future__ import annotations

import os
import re
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C._autograd import DeviceType

from megafuse.diagnose.record import Kernel

_MARK = "megafuse: one call"
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_DRIVERS = re.compile(r"cu(da)?[A-Z]")  # cudaLaunchKernel, cuLaunchKernelEx
_AHEAD, _NEAR = 60, 6  # events that are looked through for an operation, and for a view
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")


@dataclass
class Event:
    """An operation of the host, with times from the beginning of its call."""

    name: str
    start: float
    end: float
    thread: int
    shapes: Any = None
    dtypes: Any = None


@dataclass
class Launch:
    """A kernel, and when the host launched it; None where that is not known."""

    kernel: Kernel
    launched: float | None


@dataclass
class Run:
    """One call."""

    seconds: float
    events: list[Event] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # from, seconds

    @property
    def busy(self) -> float:
        """Seconds in which at least one kernel runs."""
        total, until = 0.0, 0.0
        for launch in sorted(self.launches, key=lambda x: x.kernel.start):
            begin, end = launch.kernel.start, launch.kernel.start + launch.kernel.seconds
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total

    @property
    def compiled(self) -> bool:
        return any(e.name.startswith(_COMPILED) for e in self.events)


def profiled(
    call: Callable[[], object], device: str, calls: int, shapes: bool = False
) -> list[Run]:
    """So many calls, each by itself."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it tells when it starts and stops
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=shapes) as found:
        for _ in range(calls):
            with record_function(_MARK):
                call()
                if device == "cuda":
                    torch.cuda.synchronize()
    return _runs(found.events())


def _runs(events: Any) -> list[Run]:
    on_host = [e for e in events if _is_host(e)]
    marks = sorted((e for e in on_host if e.name == _MARK), key=lambda e: e.time_range.start)
    names = {e.name for e in on_host}
    # A kernel has the number of the driver's call that launched it; where that was not recorded, it
    # is linked to the operation around the launch.
    launched = {e.id: e.time_range.start for e in on_host if _DRIVERS.match(e.name)}
    around = {e.id: e.time_range.start for e in on_host if not _DRIVERS.match(e.name)}
    runs = [Run(_seconds(m)) for m in marks]
    starts = [m.time_range.start for m in marks]
    for e in sorted(on_host, key=lambda e: (e.time_range.start, -e.time_range.end)):
        at = _call_of(e.time_range.start, starts)
        if at < 0 or e.name == _MARK:
            continue
        start, seconds = (e.time_range.start - starts[at]) * 1e-6, _seconds(e)
        if e.name in _WAITS:
            runs[at].waits.append((start, seconds))
        elif not _DRIVERS.match(e.name):
            kinds = getattr(e, "input_dtypes", None)
            runs[at].events.append(
                Event(e.name, start, start + seconds, e.thread, e.input_shapes, kinds)
            )
    for e in events:
        # A user's record_function is there on the device as well, under its own name.
        if _is_host(e) or e.name in names:
            continue
        when = launched.get(e.id)
        if when is None:
            when = around.get(getattr(e, "linked_correlation_id", 0) or -1)
        at = _call_of(e.time_range.start if when is None else when, starts)
        if at >= 0:
            kernel = Kernel(
                e.name,
                (e.time_range.start - starts[at]) * 1e-6,
                _seconds(e),
                int(getattr(e, "device_resource_id", 0) or 0),
                _kind(e.name),
            )
            host = None if when is None else (when - starts[at]) * 1e-6
            runs[at].launches.append(Launch(kernel, host))
    return runs


def _is_host(event: Any) -> bool:
    return bool(event.device_type == DeviceType.CPU)


def _call_of(when: float, starts: Sequence[float]) -> int:
    return bisect_right(starts, when) - 1


def _seconds(event: Any) -> float:
    return float(event.time_range.end - event.time_range.start) * 1e-6


def _kind(name: str) -> str:
    low = name.lower()
    return next((kind for kind in ("memcpy", "memset") if low.startswith(kind)), "kernel")


# ---- events to operations


def matched(names: Sequence[str], views: Sequence[bool], run: Run) -> list[Event | None]:
    """The event of each name, in order. Events inside one that was taken are its own parts, and
    an event of another name is a composite operation around those that are looked for.

    A name may be missing: while a watch looks on, autograd makes some views that it does not make
    otherwise, and some composites write in place or not. So each is looked for a little ahead only,
    and `add_` is as good as `add`.
    """
    events = [(_plain(e.name), e) for e in run.events]
    found: list[Event | None] = [None] * len(names)
    at = 0
    for i, name in enumerate(names):
        wanted = _plain(name)
        for ahead in range(at, min(at + (_NEAR if views[i] else _AHEAD), len(events))):
            if events[ahead][0] == wanted:
                found[i] = events[ahead][1]
                at = _behind(events, ahead)
                break
    return found


def _behind(events: Sequence[tuple[str, Event]], taken: int) -> int:
    """The first event that is no part of the one that was taken."""
    event = events[taken][1]
    at = taken + 1
    while at < len(events) and events[at][1].start < event.end:
        if events[at][1].thread != event.thread:
            break
        at += 1
    return at


def _plain(name: str) -> str:
    return name.rstrip("_")


def outermost(run: Run) -> list[Event]:
    """Events that lie in no other."""
    top: list[Event] = []
    until: dict[int, float] = {}
    for event in run.events:
        if event.start >= until.get(event.thread, 0.0):
            top.append(event)
            until[event.thread] = event.end
    return top


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)
