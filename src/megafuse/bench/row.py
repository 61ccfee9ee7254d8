"""One row while it is measured: every contender checked, then timed in turns, over some visits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from megafuse.bench import first_call, honesty, machine, timing, traffic
from megafuse.bench.arguments import Arguments
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.graph import captured
from megafuse.bench.job import YARDSTICKS, Job, Mode
from megafuse.bench.result import Entry, Roofs, Row, Span, Speedup
from megafuse.bench.timing import Clock, Timing, compare

_ROUNDS = 12  # samples that every contender has at least, over all visits


@dataclass(frozen=True)
class Effort:
    """How long to measure: seconds a row and clock in all, and how often a row is visited."""

    budget: float = 1.0
    visits: int = 3
    precision: float = 0.003


class _Failed(Exception):
    """A contender raised an exception while it was timed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


@dataclass
class _Runner:
    """One contender or yardstick of a row, and what is known of it."""

    name: str
    about: str
    contender: Contender | None  # None: a yardstick, which has no result to check
    function: Function | None = None
    step: Function | None = None
    entry: Entry = field(init=False)
    samples: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entry = Entry(self.name, self.about, yardstick=self.contender is None)

    def timings(self) -> dict[str, Timing]:
        """By clock; one that could not be used on every visit is left out."""
        used = {c: s for c, s in self.samples.items() if c not in self.entry.missing}
        return {clock: Timing.of(samples) for clock, samples in used.items()}

    @property
    def runs(self) -> bool:
        return self.step is not None and self.entry.error is None


class Measurement:
    """A row while it is measured."""

    def __init__(self, work: Job, roofs: Roofs) -> None:
        self.job = work
        self.roofs = roofs
        self.runners = [_Runner(c.name, c.about, c) for c in work.contenders]
        self.runners += [_Runner(name, YARDSTICKS[name], None) for name in work.yardsticks]
        self.conditions: list[machine.Condition] = []
        self.visits = 0

    def visit(self, effort: Effort, doing: Callable[[str], None]) -> None:
        """Checks on the first visit, then takes samples, then checks again."""
        with grad_mode(self.job.mode):
            try:
                arguments = Arguments(self.job)
            except (RuntimeError, MemoryError) as error:
                if "memory" not in str(error).lower():
                    raise
                for runner in self.runners:
                    self._fail(runner, "there is not enough memory for its arguments")
                self.visits += 1
                return
            expectations = honesty.Expectations(self.job, arguments)
            for runner in self.runners:
                if runner.contender is None:
                    runner.step = self.job.yardsticks[runner.name]()
                elif self.visits == 0:
                    doing(f"checking {runner.name}")
                    self._prepare(runner, runner.contender, arguments, expectations)
            clocks: list[Clock] = ["cold", "warm"]
            if self.job.device == "cuda":
                clocks.append("host")
            for clock in clocks:
                doing(f"timing, {clock}")
                self._time(clock, clock, self._calls(arguments), arguments.refresh, effort)
            if self.job.device == "cuda":
                doing("timing, CUDA graph")
                graphs = self._graphs(arguments)
                self._time("graph", "cold", graphs, lambda i: arguments.refresh(0), effort)
            doing("checking again")
            expectations, turn = honesty.Expectations(self.job, arguments), arguments.refresh(0)
            for runner in self.runners:
                if runner.runs and runner.contender is not None:
                    assert runner.function is not None
                    args, expected = expectations.at(turn)
                    problem = honesty.spot_check(self.job, runner.function, args, expected)
                    self._fail(runner, problem)
                    if expected.is_small:
                        turn = arguments.refresh(0)
                elif runner.contender is None:
                    runner.step = None  # its memory is needed for other rows
        self.conditions.append(machine.condition(self.job.device))
        self.visits += 1

    def _prepare(
        self,
        runner: _Runner,
        contender: Contender,
        arguments: Arguments,
        expectations: honesty.Expectations,
    ) -> None:
        """Makes the contender's function and holds it to the rules."""
        entry = runner.entry
        try:
            runner.function = _stepping(contender)
        except Exception as error:  # an import or a compiler can fail in any way
            entry.error = honesty.told(error)
            return
        if self.job.draw_another is not None:
            first_call.measure(self.job, runner.function, entry)
        entry.error, entry.accuracy = honesty.check(
            self.job, contender, runner.function, expectations
        )
        if entry.error:
            return
        runner.step = self.job.step(runner.function)
        if entry.accuracy is None:
            random = self.job.random
            why = "the results are random" if random else "the function does not take float64"
            entry.missing["accuracy"] = why
        self._watch(runner, arguments)

    def _watch(self, runner: _Runner, arguments: Arguments) -> None:
        entry, step = runner.entry, runner.step
        assert step is not None
        seen = traffic.watch(lambda: step(*arguments[0]), self.job.device)
        if seen.unfinished:
            self._fail(
                runner,
                f"works outside its stream: {seen.unfinished} ran before the call's window or "
                "went on after it",
            )
            return
        entry.peak_extra_bytes = seen.peak_extra_bytes
        if self.job.device == "cpu" and runner.name.startswith("compile"):
            entry.missing["launches"] = "the profiler does not see compiled CPU kernels"
        else:
            entry.launches, entry.kernels = len(seen.kernels), list(seen.kernels)

    def _calls(self, arguments: Arguments) -> dict[str, timing.Contender]:
        sets, n = arguments.sets, len(arguments.sets)

        def call(step: Function) -> timing.Contender:
            return lambda i: step(*sets[i % n])

        return {r.name: call(r.step) for r in self.runners if r.runs and r.step is not None}

    def _graphs(self, arguments: Arguments) -> dict[str, timing.Contender]:
        """Replays of each contender's call, captured once in a CUDA graph."""
        found = {}
        for runner in self.runners:
            if not runner.runs or runner.step is None or runner.contender is None:
                continue
            if runner.contender.replays_graph:
                runner.entry.missing["graph"] = "replays a CUDA graph of its own"
                continue
            try:
                found[runner.name] = captured(runner.step, arguments[0])
            except Exception as error:  # not every function can be captured
                torch.cuda.synchronize()
                reason = honesty.first_line(error)
                runner.entry.missing["graph"] = f"cannot be captured: {reason}"
        return found

    def _time(
        self,
        name: str,
        clock: Clock,
        calls: dict[str, timing.Contender],
        refresh: Callable[[int], object],
        effort: Effort,
    ) -> None:
        taken = None
        while taken is None:
            guarded = {n: _guarded(n, call) for n, call in calls.items() if self._runs(n)}
            try:
                taken = compare(
                    guarded,
                    device=self.job.device,
                    clock=clock,
                    budget=effort.budget / effort.visits,
                    precision=effort.precision,
                    warmup=2,
                    refresh=refresh,
                    rounds=-(-_ROUNDS // effort.visits),
                )
            except _Failed as failed:  # out of memory, say: the others go on without it
                said = honesty.told(failed.error)
                self._fail(self._named(failed.name), f"while it was timed: {said}")
        for runner in self.runners:
            if runner.name in taken:
                runner.samples.setdefault(name, []).extend(taken[runner.name].samples)

    def _named(self, name: str) -> _Runner:
        return next(r for r in self.runners if r.name == name)

    def _runs(self, name: str) -> bool:
        return self._named(name).runs

    def _fail(self, runner: _Runner, problem: str | None) -> None:
        if problem:
            runner.entry.error = problem

    # ---- what was found

    def row(self) -> Row:
        work = self.job.work
        products = self._products()
        row = Row(
            op=self.job.name,
            mode=self.job.mode,
            dtype=self.job.dtype,
            shape=list(self.job.shape),
            widths=list(self.job.widths),
            choices=self.job.choices,
            elements=self.job.elements,
            device=self.job.device,
            subject=self.runners[0].name,
            bytes_least=work.bytes_moved if work else None,
            flops=work.flops if work else None,
            roof=self._binding(),
            floor=self._floor(),
            entries=[r.entry for r in self.runners],
            conditions=(asdict(self.conditions[-1]) if self.conditions else {}) | products,
            warnings=[
                *machine.throttled(self.conditions),
                *machine.not_float32(products),
                *(self.job.remarks() if self.visits else ()),
            ],
        )
        timings = {r.name: r.timings() for r in self.runners}
        for runner in self.runners:
            self._judge_floor(runner, timings[runner.name], timings.get("copy", {}))
        for runner in self.runners:
            if runner.entry.error is None:
                self._tell(runner.entry, timings[runner.name])
        subject = self.runners[0]
        if subject.entry.error is None:
            for runner in self.runners[1:]:
                if runner.entry.error is None:
                    ours, theirs = timings[subject.name], timings[runner.name]
                    row.speedups[runner.name] = {
                        clock: _speedup(theirs[clock], ours[clock])
                        for clock in theirs
                        if clock in ours
                    }
        return row

    def _products(self) -> dict[str, str]:
        """How float32 matrices are multiplied, where this row does."""
        if self.job.multiplies and self.job.dtype == "float32":
            return machine.float32_products(self.job.device)
        return {}

    def _least(self) -> dict[str, float]:
        """Seconds that each roof allows at best."""
        work = self.job.work
        if work is None:
            return {}
        compute = self.roofs.matching(self.job.dtype, gemm=self.job.multiplies)
        return {"memory": work.bytes_moved / self.roofs.copy, "compute": work.flops / compute}

    def _floor(self) -> float | None:
        return max(self._least().values(), default=None)

    def _binding(self) -> str | None:
        least = self._least()
        return max(least, key=least.__getitem__, default=None)

    def _judge_floor(
        self, runner: _Runner, times: dict[str, Timing], copies: dict[str, Timing]
    ) -> None:
        if runner.contender is None or "cold" not in times or runner.entry.error:
            return
        copied = None
        if "cold" in copies and self.job.work is not None:
            copied = self.job.work.bytes_moved / copies["cold"].low
        self._fail(runner, honesty.below_floor(self.job, times["cold"].median, self.roofs, copied))

    def _tell(self, entry: Entry, times: dict[str, Timing]) -> None:
        entry.times = {clock: Span(t.median, t.low, t.high, t.n) for clock, t in times.items()}
        work, cold = self.job.work, entry.cold
        if work is None or cold is None or entry.name == "bare":
            return
        entry.bytes_per_second = work.bytes_moved / cold
        if entry.yardstick:
            entry.roof_share = entry.bytes_per_second / self.roofs.copy
            return
        entry.flop_per_second = work.flops / cold
        floor = self._floor()
        entry.roof_share = None if floor is None else floor / cold


def _guarded(name: str, call: timing.Contender) -> timing.Contender:
    def guarded(i: int) -> object:
        try:
            return call(i)
        except Exception as error:  # a contender may fail in any way
            raise _Failed(name, error) from error

    return guarded


def _speedup(theirs: Timing, ours: Timing) -> Speedup:
    ratio = timing.speedup(theirs, ours)
    if ours.overlaps(theirs):
        verdict = "ambiguous"
    else:
        verdict = "faster" if ratio.median > 1 else "slower"
    return Speedup(ratio.median, ratio.low, ratio.high, ours.n, verdict)


def _stepping(contender: Contender) -> Function:
    function = contender.make()
    if not contender.replays_graph:
        return function

    def stepped(*args: Any) -> Any:
        # Its owner's way to say that the last result is no longer needed.
        torch.compiler.cudagraph_mark_step_begin()
        return function(*args)

    return stepped


def grad_mode(mode: Mode) -> AbstractContextManager[Any]:
    """No graph is recorded where only the forward result counts."""
    return torch.no_grad() if mode == "forward" else torch.enable_grad()
