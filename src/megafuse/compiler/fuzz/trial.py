"""One program: ours and eager, on two sets of arguments, forward and backward."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from megafuse.compiler.fuzz.judge import Yardstick, wrong
from megafuse.compiler.fuzz.program import RUNS, Program
from megafuse.compiler.fuzz.runs import eager, exact, names, noisy
from megafuse.compiler.fuzz.subject import Subject, subject
from megafuse.graph.capture import CaptureError
from megafuse.graph.plan import Call
from megafuse.runtime import fallback, loader, progress

Verdict = Literal["right", "wrong", "error", "refused", "crash", "invalid"]


@dataclass
class Outcome:
    """What came of a program. `calls` are the operations that were left to the library."""

    verdict: Verdict
    message: str = ""
    kernels: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    captures: int = 0
    seconds: float = 0.0

    @property
    def is_finding(self) -> bool:
        return self.verdict in ("wrong", "error", "crash")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def check(program: Program) -> None:
    """For tests: raises unless the fused program is right, where tensors are made by default."""
    outcome = trial(program, torch.empty(0).device.type)
    assert outcome.verdict == "right", f"{outcome.message}\n{program.source}"


def trial(program: Program, device: str = "cpu") -> Outcome:
    started = time.perf_counter()
    ours = subject(program, device)
    logged = _Logged()
    progress.logger.addHandler(logged)
    host = loader.load()
    assert host is not None, "the fuzzer needs a C++ compiler"
    host.poison_outputs(True)
    try:
        with fallback.strict():
            outcome = _judged(program, ours, device)
    except CaptureError as error:
        outcome = Outcome("refused", error.what)
    finally:
        host.poison_outputs(False)
        progress.logger.removeHandler(logged)
    unfused = [message for message in logged.messages if "please report" in message]
    if outcome.verdict == "right" and unfused:
        outcome = Outcome("error", unfused[0])
    elif outcome.verdict in ("right", "wrong") and not ours.plans() and logged.messages:
        # It ran unfused, and then dropout draws other numbers.
        outcome = Outcome("refused", "; ".join(logged.messages))
    elif outcome.verdict == "right" and ours.refusals():
        outcome = Outcome("refused", "; ".join(ours.refusals()))
    _count(outcome, ours)
    outcome.seconds = time.perf_counter() - started
    return outcome


class _Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _count(outcome: Outcome, ours: Subject) -> None:
    calls: Counter[str] = Counter()
    for plan in ours.plans():
        called = [step for step in plan.steps if isinstance(step, Call)]
        calls.update(str(step.target) for step in called)
        outcome.kernels += len(plan.steps) - len(called)
    outcome.calls = dict(calls)
    outcome.captures = ours.captures


def _judged(program: Program, ours: Subject, device: str) -> Outcome:
    for run in range(RUNS):
        try:
            right, theirs = exact(program, run, device), eager(program, run, device)
        except Exception as error:
            return Outcome("invalid", f"eager: {error}")
        try:
            mine = ours.run(run)
        except CaptureError:
            raise
        except Exception as error:
            return Outcome("error", f"{type(error).__name__}: {error}")
        yardstick = Yardstick(theirs, right, functools.partial(noisy, program, run, device))
        found = wrong(names(program), mine, yardstick)
        if found:
            return Outcome("wrong", f"run {run}: {found}")
    return Outcome("right")
