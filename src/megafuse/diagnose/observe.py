"""One call, observed: timed by itself, then profiled, then watched operation by operation."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from megafuse.bench.timing import Timing, compare
from megafuse.diagnose import compiled, join, roofs, sample, timeline
from megafuse.diagnose.keep import Keep
from megafuse.diagnose.limit import COMPILING, time_limit
from megafuse.diagnose.native import Natives
from megafuse.diagnose.record import HostCall, Record
from megafuse.diagnose.replay import Tape
from megafuse.diagnose.subject import Subject
from megafuse.diagnose.timeline import Run
from megafuse.diagnose.watch import Watch, fused_as_they_are

_TIMED = 0.15  # of the whole budget: the plain calls
_PROFILED = 0.1
_MOST_EVENTS = 20_000  # the profiler takes 50 µs to make sense of one
_UNEXPLAINED = 0.3  # of a call: then the lines that take the time are looked for
_WORTH_LOOKING = 200e-6  # seconds: a shorter call is over before its line is looked at


def observed(
    subject: Subject, keep: Keep, seconds: float, or_exit: bool = False
) -> tuple[Record, Tape | None]:
    """What a call runs and how long it takes, and its steps to run again. Leaves the state as calls
    leave it: the caller puts it back with `keep`."""
    before = compiled.Seen()
    with time_limit(max(seconds, COMPILING if subject.compiles else 0.0), subject.name, or_exit):
        first = _first(subject, keep)
    # Each part has the whole limit: the first call has shown that calls come back.
    with time_limit(seconds, subject.name, or_exit):
        once = _seconds(subject)
        begun = compiled.Seen()
        retries = _retries(subject)
        plain = _timed(subject, once, seconds * _TIMED)
        again = compiled.Seen().graphs - begun.graphs
        retries = _retries(subject) - retries
        host = _host(subject, plain)
    # Before the profiler, too: once it was there, launches take longer for as long as the process
    # lives (CUPTI stays), and what a call costs on this machine would be what it costs then.
    roofs.machine(subject.device)
    with time_limit(seconds, subject.name, or_exit):
        runs = _profiled(subject, once, seconds * _PROFILED)
    is_compiled = subject.compiled or any(run.compiled for run in runs)
    with time_limit(seconds, subject.name, or_exit):
        watch, natives = (None, None) if is_compiled else _watched(subject)
    record = Record(
        subject.name,
        subject.device,
        "forward" if subject.mode == "forward" else "forward+backward",
        plain.median,
        plain.low,
        plain.high,
        plain.n,
        first,
        compiled=is_compiled,
        recompiled=again,
        graph_breaks=before.breaks_since() if is_compiled else [],
        allocator_retries=retries,
        notes=list(keep.lost),
        where=subject.where,
    )
    if watch is None or natives is None:
        record.operations = compiled.operations(runs)
    else:
        record.operations, record.host_calls = join.joined(watch, natives, runs, record)
    if record.device == "cpu" and runs:
        join.to_scale(record, timeline.middle([run.seconds for run in runs]))
    record.busy = _busy(record, runs)
    if watch is not None:
        with time_limit(seconds, subject.name, or_exit):
            _explain_the_rest(subject, record, watch)
    record.host = host
    record.peak_bytes = _peak(subject)
    return record, _tape(record, watch)


def _tape(record: Record, watch: Watch | None) -> Tape | None:
    """Its steps under the numbers that operations have in the record, where others came in."""
    if watch is None:
        return None
    step_of = {id(op): step for op, step in zip(watch.operations, watch.tape.steps, strict=True)}
    steps = [watch.tape.natives.get(id(op)) or step_of.get(id(op)) for op in record.operations]
    return Tape(steps, watch.tape.there)


# ---- calls


def _first(subject: Subject, keep: Keep) -> float:
    """The first call, under the watch that copies what is about to be written to."""
    start = time.perf_counter()
    if subject.compiled:  # a watch would keep it from running what is compiled
        keep.buffers()
        subject.call()
    else:
        watch = Watch(None, keep)
        with fused_as_they_are(watch), watch:
            subject.call()
    _wait(subject)
    return time.perf_counter() - start


def _seconds(subject: Subject) -> float:
    """Of one call, after another one that may set something up."""
    taken = []
    for _ in range(2):
        _wait(subject)
        start = time.perf_counter()
        subject.call()
        _wait(subject)
        taken.append(time.perf_counter() - start)
    return min(taken)


def _timed(subject: Subject, once: float, budget: float) -> Timing:
    rounds = max(3, min(10, int(budget / max(once, 1e-9))))
    (taken,) = compare(
        {"": lambda i: subject.call()},
        device=subject.device,
        clock="wall",
        budget=min(budget, 1.0),
        precision=0.005,
        warmup=1 if once < budget / 10 else 0,
        rounds=rounds,
    ).values()
    return taken


def _profiled(subject: Subject, once: float, budget: float) -> list[Run]:
    """Of what is compiled with the shapes of its operations: nobody else sees them."""
    shapes = subject.compiled
    runs = timeline.profiled(subject.call, subject.device, 1, shapes)
    events = max(1, max((len(run.events) + len(run.launches) for run in runs), default=1))
    more = max(1, min(5, int(budget / max(once, 1e-6)), _MOST_EVENTS // events))
    found_inside = not shapes and any(run.compiled for run in runs)
    if more > 1 or found_inside:
        runs = timeline.profiled(subject.call, subject.device, more, shapes or found_inside)
    return runs


def _watched(subject: Subject) -> tuple[Watch, Natives]:
    if subject.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    watch = Watch(_watched.__code__)
    natives = Natives(watch)
    with fused_as_they_are(watch), watch:
        watch.begun = time.perf_counter()
        with natives:
            subject.call()
    _wait(subject)
    return watch, natives


# ---- what is left


def _explain_the_rest(subject: Subject, record: Record, watch: Watch) -> None:
    """Lines of the user's that take time and run no operation, where much time is unexplained."""
    known = sum(call.seconds for call in record.host_calls)
    rest = record.seconds - record.busy - known
    if rest < max(_UNEXPLAINED * record.seconds, _WORTH_LOOKING):
        return
    # What Python spends around operations is the cost of calling them, and no work of its own.
    working = {(call.where.file, call.where.line) for call in record.host_calls} | watch.lines
    for where, share in sample.lines(subject.call, record.seconds).items():
        if where.file and (where.file, where.line) not in working:
            took = min(rest, share * record.seconds)
            name = f"`{where.text[:48]}`"
            record.host_calls.append(HostCall(name, "python", where, 0.0, took))


# ---- totals


def _busy(record: Record, runs: Sequence[Run]) -> float:
    if record.device == "cuda":
        return timeline.middle([run.busy for run in runs]) if runs else 0.0
    return min(record.seconds, sum(op.host_seconds for op in record.operations))


def _host(subject: Subject, plain: Timing) -> float:
    """No longer than the call itself: a queue that is full would count as work."""
    if subject.device != "cuda":
        return plain.median
    (taken,) = compare(
        {"": lambda i: subject.call()}, device="cuda", clock="host", budget=0.2, warmup=0, rounds=3
    ).values()
    return min(taken.median, plain.median)


def _peak(subject: Subject) -> int | None:
    if subject.device != "cuda":
        return None
    return int(torch.cuda.max_memory_allocated()) - int(torch.cuda.memory_allocated())


def _retries(subject: Subject) -> int:
    if subject.device != "cuda":
        return 0
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def _wait(subject: Subject) -> None:
    if subject.device == "cuda":
        torch.cuda.synchronize()
