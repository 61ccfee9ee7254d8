"""Operations of a watched call with the times of calls that nothing watched.

watch    ── every operation, its tensors and its line, in a call that it slows
natives  ── calls into extensions and other C functions between them, in the same call
runs     ── the profiler's events of undisturbed calls: when each operation ran, its kernels
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from megafuse.diagnose import timeline
from megafuse.diagnose.native import Native, Natives
from megafuse.diagnose.record import HostCall, Operation, Record, Where
from megafuse.diagnose.replay import Place, Slot, Step
from megafuse.diagnose.timeline import Run
from megafuse.diagnose.watch import Watch

_NODES = re.compile(r"Backward\d+$")  # of autograd: what it calls has events of its own
_NESTED = 8  # operations at a time, over all threads
_UNSEEN = 20e-6  # seconds of an event that is worth a line of its own
_MATCHED = 0.9  # of the operations: below, the profiler's call was another one


def joined(
    watch: Watch, natives: Natives, runs: Sequence[Run], record: Record
) -> tuple[list[Operation], list[HostCall]]:
    """Operations in their order, extensions among them, and the host's other work."""
    views = [op.kind == "view" for op in watch.operations]
    found = [timeline.matched(watch.names, views, run) for run in runs]
    needed = _MATCHED * views.count(False)
    good = [
        (run, events)
        for run, events in zip(runs, found, strict=True)
        if sum(e is not None for e, is_view in zip(events, views, strict=True) if not is_view)
        >= needed
    ]
    if good:
        _retime(watch.operations, good)
        _launches(watch.operations, good)
    elif watch.operations:
        record.notes.append(
            "a call ran other operations each time, so that their times are those of a watched "
            "call, which is slower"
        )
    operations, calls = _with_natives(watch, natives, good)
    _loading(calls, runs)
    if good:
        operations = _with_unseen(operations, *good[len(good) // 2])
    others = (native for native in natives.calls if native.kind != "extension")
    for call, native in zip(calls, others, strict=True):
        call.inside = [op.index for op in watch.operations[slice(*native.operations)]]
    return operations, calls


def _retime(operations: list[Operation], good: Sequence[tuple[Run, list[Any]]]) -> None:
    ends = 0.0
    for at, op in enumerate(operations):
        events = [found[at] for _, found in good if found[at] is not None]
        if not events:
            op.host_start = ends
            op.host_seconds = 0.0 if op.kind == "view" else op.host_seconds
        else:
            op.host_start = timeline.middle([e.start for e in events])
            op.host_seconds = timeline.middle([e.end - e.start for e in events])
        ends = op.host_start + op.host_seconds


def _launches(operations: list[Operation], good: Sequence[tuple[Run, list[Any]]]) -> None:
    """Kernels of the middle run to the operation that launched them; durations are medians."""
    run, events = good[len(good) // 2]
    if not run.launches:
        return
    windows = [(e.start, e.end, at) for at, e in enumerate(events) if e is not None]
    windows.sort()
    for launch in run.launches:
        at = _running(windows, launch.launched)
        if at is not None:
            operations[at].kernels.append(launch.kernel)
    for op in operations:
        if op.kernels:
            op.device_start = min(k.start for k in op.kernels)
            op.device_seconds = sum(k.seconds for k in op.kernels)
        else:
            op.device_seconds = 0.0
    for start, seconds in run.waits:
        at = _running(windows, start)
        if at is not None and seconds > 0:
            operations[at].waits = True


def _running(windows: Sequence[tuple[float, float, int]], when: float | None) -> int | None:
    if when is None:
        return None
    last = bisect_right(windows, (when, math.inf, 0))
    for start, end, at in reversed(windows[max(0, last - _NESTED) : last]):  # it began last
        if start <= when < end:
            return at
    return None


def _with_natives(
    watch: Watch, natives: Natives, good: Sequence[tuple[Run, list[Any]]]
) -> tuple[list[Operation], list[HostCall]]:
    operations = list(watch.operations)
    calls: list[HostCall] = []
    extensions: list[tuple[int, Operation]] = []
    for native in natives.calls:
        begin = _after(operations, native.operations[0], native, watch)
        if native.kind != "extension":
            calls.append(HostCall(native.name, native.kind, native.where, begin, native.own))
            continue
        op = _extension(native, watch, begin, good)
        extensions.append((native.operations[0], op))
        _note(native, op, watch)
    for place, op in reversed(extensions):
        operations.insert(place, op)
    for at, op in enumerate(operations):
        op.index = at
    return operations, calls


def _loading(calls: list[HostCall], runs: Sequence[Run]) -> None:
    """The loaders' times from undisturbed calls: PyTorch marks them for the profiler."""
    marked = [
        sum(e.end - e.start for e in run.events if e.name.startswith("enumerate(DataLoader)"))
        for run in runs
    ]
    loading = [call for call in calls if call.kind == "data loader"]
    watched = sum(call.seconds for call in loading)
    if watched and any(marked):
        for call in loading:
            call.seconds *= timeline.middle(marked) / watched


def _with_unseen(operations: list[Operation], run: Run, found: Sequence[Any]) -> list[Operation]:
    """With what only the profiler has seen: kernels that need no dispatcher, as the backward of a
    function of `megafuse.fuse`, or a Triton kernel that is launched by itself."""
    taken = sorted((e.start, e.end) for e in found if e is not None)
    starts = [start for start, _ in taken]
    unseen = []
    for event in timeline.outermost(Run(run.seconds, [e for e in run.events if _is_work(e)])):
        if event.end - event.start < _UNSEEN:
            continue
        before = bisect_left(starts, event.end)  # those that began before its end
        if before == 0 or taken[before - 1][1] <= event.start:
            phase = "backward" if "Backward" in event.name else "forward"
            unseen.append(
                Operation(0, event.name, "other", phase, Where(), event.start,
                          event.end - event.start)
            )  # fmt: skip
    if run.launches:
        unseen += _orphans(operations, unseen, run)
    if not unseen:
        return operations
    together = sorted((*operations, *unseen), key=lambda op: op.host_start)
    for at, op in enumerate(together):
        op.index = at
    return together


def _orphans(
    operations: Sequence[Operation], unseen: Sequence[Operation], run: Run
) -> list[Operation]:
    """Kernels that belong to no operation so far: to one that only the profiler saw, or alone."""
    known = {id(kernel) for op in operations for kernel in op.kernels}
    alone = []
    for launch in run.launches:
        kernel, when = launch.kernel, launch.launched
        if id(kernel) in known:
            continue
        inside = [
            op
            for op in unseen
            if when is not None and op.host_start <= when < op.host_start + op.host_seconds
        ]
        if inside:
            inside[0].kernels.append(kernel)
            continue
        begin = kernel.start if when is None else when
        alone.append(
            Operation(0, kernel.name, "extension", "forward", Where(), begin, 0.0, kernel.start,
                      kernel.seconds, [kernel])
        )  # fmt: skip
    for op in unseen:
        op.device_seconds = sum(k.seconds for k in op.kernels)
        op.device_start = min((k.start for k in op.kernels), default=None)
    return alone


def _is_work(event: Any) -> bool:
    """No record_function of somebody's, and no step of autograd's engine around a node."""
    own = "#" not in event.name and " " not in event.name
    node = event.name.startswith(("autograd::", "torch::")) or _NODES.search(event.name)
    return own and not node


def _after(operations: Sequence[Operation], place: int, native: Native, watch: Watch) -> float:
    """When it began, in the time of the undisturbed calls."""
    if place > 0 and place <= len(operations):
        before = operations[place - 1]
        return before.host_start + before.host_seconds
    return 0.0 if place == 0 else native.start - watch.begun


def _between(native: Native, good: Sequence[tuple[Run, list[Any]]]) -> float:
    """Seconds of a native call in calls that nothing watches: from the operation before it to the
    one after, less those inside. At most half as long again as it was while watched."""
    first, last = native.operations
    gaps = []
    for run, events in good:
        begin = max((e.end for e in events[:first] if e is not None), default=0.0)
        end = min((e.start for e in events[last:] if e is not None), default=run.seconds)
        inside = sum(e.end - e.start for e in events[first:last] if e is not None)
        gaps.append(end - begin - inside)
    return min(1.5 * native.own, timeline.middle(gaps)) if gaps else native.own


def _note(native: Native, op: Operation, watch: Watch) -> None:
    """On the tape, so that it can be run again, where all that it takes and gives is known."""
    if native.function is None or len(op.writes) != 1:
        return
    places = [Place.of(t) for t in op.reads]
    watch.tape.there.update(zip(places, native.tensors, strict=True))
    args = tuple(map(Slot, places))
    watch.tape.natives[id(op)] = Step(native.function, args, {}, (Place.of(op.writes[0]),), False)


def _extension(
    native: Native, watch: Watch, begin: float, good: Sequence[tuple[Run, list[Any]]]
) -> Operation:
    first, last = native.operations
    inside = watch.operations[first:last]
    reads = [watch.touched(t) for t in native.tensors]
    writes = [t for op in inside for t in op.writes if not t.outside]
    moved = sum({t.value: t.bytes for t in (*reads, *writes)}.values())
    seconds = _between(native, good)
    op = Operation(
        0, native.name, "extension", "forward", native.where, begin, seconds,
        reads=reads, writes=writes, bytes_moved=moved,
    )  # fmt: skip
    if good and good[len(good) // 2][0].launches:
        run, events = good[len(good) // 2]
        ends = [e.end for e in events[:first] if e is not None]
        starts = [e.start for e in events[last:] if e is not None]
        low, high = max(ends, default=0.0), min(starts, default=run.seconds)
        op.kernels = [
            x.kernel for x in run.launches if x.launched is not None and low <= x.launched < high
        ]
        op.device_seconds = sum(k.seconds for k in op.kernels)
        op.device_start = min((k.start for k in op.kernels), default=None)
    return op


def to_scale(record: Record, profiled: float) -> None:
    """Operations take the share of a plain call that they have of a profiled one: that one was
    slower by the profiler, and by what else the machine did at that time."""
    begun = sum(op.host_seconds for op in record.operations)
    waited = sum(call.seconds for call in record.host_calls)
    scale = record.seconds / max(profiled, begun + waited, 1e-12)
    for op in record.operations:
        op.host_start *= scale
        op.host_seconds *= scale
    for call in record.host_calls:
        call.start *= scale
        call.seconds *= scale
