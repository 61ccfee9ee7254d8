"""Runs rows: checks every contender, then times the right ones in turns, and says what it found.

A suite visits each row several times, minutes apart, so that a row's spread also holds what the
machine does slowly: heat, clocks, neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from megafuse.bench import contenders as who
from megafuse.bench import machine, op_job, roof
from megafuse.bench.contenders import Function
from megafuse.bench.job import YARDSTICKS, Job
from megafuse.bench.result import Result, Row
from megafuse.bench.row import Effort, Measurement
from megafuse.bench.spec import Spec
from megafuse.ops import OPS
from megafuse.registry import Op
from megafuse.runtime import fallback, loader, provenance


@dataclass
class Watcher:
    """Is told how far a run is."""

    visiting: Callable[[int, int, int, int, Job], None] = lambda *_: None
    doing: Callable[[str], None] = lambda _: None
    finished: Callable[[Row], None] = lambda _: None


class _TimeIsUp(Exception):
    """There were only so many seconds."""


@fallback.strict()
def run(
    jobs: Sequence[Job],
    *,
    suite: str = "",
    command: str = "",
    effort: Effort | None = None,
    watcher: Watcher | None = None,
    measure_roofs: bool = False,
    seconds: float | None = None,
) -> Result:
    """Measures the jobs, in order, on as many visits as `effort` says, or until so many seconds
    are over."""
    effort, watcher = effort or Effort(), watcher or Watcher()
    started = time.perf_counter()
    device = jobs[0].device
    watcher.doing("measuring what this machine can do at best")
    load, (commit, changed) = machine.load(), provenance.commit()
    roofs = roof.roofs(device, measure_roofs)
    measured = [Measurement(each, roofs) for each in jobs]
    rows: list[Row] = []
    stopped = False
    try:
        for visit in range(effort.visits):
            for i, row in enumerate(measured):
                if seconds is not None and time.perf_counter() - started > seconds:
                    raise _TimeIsUp
                watcher.visiting(visit, effort.visits, i, len(measured), row.job)
                row.visit(effort, watcher.doing)
                if visit == effort.visits - 1:
                    rows.append(row.row())
                    watcher.finished(rows[-1])
    except (KeyboardInterrupt, _TimeIsUp):  # what was measured until then is kept
        stopped = True
        for row in measured[len(rows) :]:
            if row.visits:
                rows.append(row.row())
                watcher.finished(rows[-1])
    return Result(
        suite=suite,
        command=command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit,
        changed=changed,
        machine=machine.about(device) | {"load": load},
        versions=provenance.versions(),
        roofs=roofs,
        rows=rows,
        seconds_taken=time.perf_counter() - started,
        stopped=stopped,
    )


def jobs_of(specs: Iterable[Spec], device: str) -> list[Job]:
    """The jobs that rows of a suite stand for."""
    return [of_spec(spec, device) for spec in specs]


def of_spec(spec: Spec, device: str) -> Job:
    op = OPS[spec.op]
    named = [n for n in spec.against if n not in YARDSTICKS]
    contenders = who.of_op(op, device, named)
    made = op_job.of_op(
        op,
        spec.mode,
        spec.dtype,
        spec.shape,
        device,
        contenders,
        spec.features,
        dict(spec.choices),
    )
    if "bare" in spec.against:
        made.yardsticks["bare"] = lambda: _bare(op, made)
    return made


def _bare(op: Op, made: Job) -> Function:
    """The least that a launch of this very kernel costs: see bare_launch in host/module.cpp."""
    host = loader.load()
    assert host is not None
    args = made.arguments()
    host.remember_launches(True)
    op.fused(*args)
    host.remember_launches(False)
    return lambda *_: host.bare_launch(args[0])
