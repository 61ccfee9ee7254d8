"""Looks at one case: a screening of everyone, then a careful comparison with whoever is near."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from megafuse.bench import accuracy, honesty
from megafuse.bench.accuracy import leaves
from megafuse.bench.contenders import Function
from megafuse.bench.job import Job
from megafuse.bench.row import grad_mode
from megafuse.bench.sweep import judge, limits
from megafuse.bench.sweep.case import KNOWN, Case, job_of
from megafuse.bench.sweep.compiling import Compiler
from megafuse.bench.sweep.limits import LOST
from megafuse.bench.timing import Clock, Timing, compare
from megafuse.registry import OPS

# By device: the device's own time with a cold L2, as the suites have it, and calls in a row, which
# for small shapes is the host's; on a CPU calls in a row are all there is.
CLOCKS: dict[str, tuple[Clock, ...]] = {"cuda": ("cold", "wall"), "cpu": ("wall",)}
CLEAR = 1.1  # times as fast: no need to look more closely
_SCREENED, _CAREFUL = 5, 15  # rounds
_SECONDS = {"cuda": 0.15, "cpu": 0.6}  # of a careful comparison and clock, where it is noisy

Timings = dict[str, dict[str, Timing]]  # by clock, then by contender


@dataclass
class Seen:
    """What was found out about a case."""

    case: Case
    why: str = ""  # it was skipped, or fused failed
    failed: bool = False
    lost: bool = False  # and the device with it
    screened: Timings = field(default_factory=dict)
    careful: Timings = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)  # of the careful comparison

    @property
    def stage(self) -> str:
        if self.failed:
            return "failed"
        return "careful" if self.careful else "screened" if self.screened else "skipped"

    @property
    def compiled(self) -> bool:
        timings = (*self.screened.values(), *self.careful.values())
        return any(name.startswith("compile") for by_name in timings for name in by_name)

    @property
    def behind(self) -> dict[str, str]:
        """Clock → the fastest of those that fused is behind, where there is one."""
        found = {}
        for clock, by_name in self.careful.items():
            ours = by_name["fused"]
            ahead = [n for n, t in by_name.items() if n != "fused" and judge.behind(t, ours, clock)]
            if ahead:
                found[clock] = min(ahead, key=lambda name: by_name[name].median)
        return found


def look(case: Case, device: str, compiler: Compiler) -> Seen:
    """Screens a case, and compares it carefully where fused is not clearly ahead."""
    seen = Seen(case)
    job = job_of(case, device)
    with grad_mode(case.mode), limits.as_in_a_new_process():
        try:
            args = _arguments(seen, job)
            if args is not None:
                _compare(seen, job, args, compiler)
        except torch.OutOfMemoryError:
            seen.why = "there is not enough memory"
        except LOST as error:
            seen.why, seen.failed, seen.lost = honesty.told(error), True, True
    return seen


def look_again(seen: Seen, device: str) -> Seen:
    """The careful comparison once more, with fresh arguments; without compilers that are wrong."""
    again = Seen(seen.case)
    job = job_of(seen.case, device)
    with grad_mode(seen.case.mode), limits.as_in_a_new_process():
        try:
            args = _arguments(again, job)
            if args is None:
                return again
            again.functions = {
                name: function
                for name, function in seen.functions.items()
                if not name.startswith("compile") or _right(job, function, args)
            }
            if len(again.functions) > 1:
                seconds = 2 * _SECONDS[device]
                again.careful = _timed(job, again.functions, args, 2 * _CAREFUL, seconds)
        except torch.OutOfMemoryError:
            again.why = "there is not enough memory"
    return again


def near_to_fused(timings: Timings) -> list[str]:
    """Those that fused is not clearly ahead of, by some clock."""
    found = [
        name
        for by_name in timings.values()
        for name, timing in by_name.items()
        if name != "fused" and judge.ratio(timing, by_name["fused"]).median < CLEAR
    ]
    return list(dict.fromkeys(found))


def _compare(seen: Seen, job: Job, args: Sequence[Any], compiler: Compiler) -> None:
    case = seen.case
    functions = {"fused": OPS[case.op].fused, "eager": job.reference}

    def compile_too(name: str, function: Function | None) -> None:
        if function is not None and compiler.runs(case, job.step(function), args):
            functions[name] = function

    if case.kind == KNOWN:  # no other case has its group
        compile_too("compile", compiler.of_shape(case, job))
    else:
        compile_too("compile-dynamic", compiler.of_group(case, job))
    seen.screened = _timed(job, functions, args, _SCREENED, 0.0)
    near = near_to_fused(seen.screened)
    if not near:
        return
    if case.kind != KNOWN:
        compile_too("compile", compiler.of_shape(case, job))
        near.append("compile")
    seen.functions = {n: f for n, f in functions.items() if n == "fused" or n in near}
    seen.careful = _timed(job, seen.functions, args, _CAREFUL, _SECONDS[job.device])


def _arguments(seen: Seen, job: Job) -> list[Any] | None:
    """Drawn, and called with once; None where the case is not to be timed."""
    seen.why = limits.too_much(job) or limits.kills_torch(seen.case, job.device) or ""
    if seen.why:
        return None
    try:
        args = job.arguments()
        seen.why = limits.too_long(job, args) or ""
    except torch.OutOfMemoryError:
        raise
    except LOST as error:
        seen.why, seen.failed, seen.lost = f"eager: {honesty.told(error)}", True, True
    except Exception as error:  # eager refuses what fused takes: nothing to compare with
        seen.why = f"eager: {honesty.told(error)}"
    if seen.why:
        return None
    try:
        job.step(OPS[seen.case.op].fused)(*args)
        if job.device == "cuda":
            torch.cuda.synchronize()
    except (torch.OutOfMemoryError, LOST):
        raise
    except Exception as error:  # whatever it is, it is ours
        seen.why, seen.failed = honesty.told(error), True
        return None
    return args


def _timed(
    job: Job, functions: dict[str, Function], args: Sequence[Any], rounds: int, seconds: float
) -> Timings:
    def call(function: Function) -> Any:
        step = job.step(function)
        return lambda i: step(*args)

    calls = {name: call(function) for name, function in functions.items()}
    return {
        clock: compare(
            calls, device=job.device, clock=clock, budget=seconds, rounds=rounds, warmup=1
        )
        for clock in CLOCKS[job.device]
    }


def _right(job: Job, function: Function, args: Sequence[Any]) -> bool:
    """Whether it gives what eager does, by the benchmark's rule; who does not is no rival."""
    try:
        expected = honesty.Expected.of(job, args)
        got = [t.detach() for t in leaves(job.step(function)(*args))]
        return accuracy.wrong(got, expected.eager, expected.exact, job.random) is None
    except torch.OutOfMemoryError:  # float64 takes more memory than the case itself
        return True
