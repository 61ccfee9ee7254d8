"""One program: fused and eager, on two sets of arguments, forward and backward."""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megafuse.compiler.fused import Fused, fuse
from megafuse.compiler.fuzz.arguments import arguments
from megafuse.compiler.fuzz.exact import Exact, widened
from megafuse.compiler.fuzz.judge import Results, Yardstick, wrong
from megafuse.compiler.fuzz.noise import Noise
from megafuse.compiler.fuzz.program import RUNS, Program
from megafuse.graph import draws
from megafuse.graph.capture import CaptureError
from megafuse.graph.plan import Call
from megafuse.graph.random_calls import AsFused
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
    fused = fuse(program.function())
    logged = _Logged()
    progress.logger.addHandler(logged)
    host = loader.load()
    assert host is not None, "the fuzzer needs a C++ compiler"
    host.poison_outputs(True)
    try:
        with fallback.strict():
            outcome = _judged(program, fused, device)
    except CaptureError as error:
        outcome = Outcome("refused", error.what)
    finally:
        host.poison_outputs(False)
        progress.logger.removeHandler(logged)
    unfused = [message for message in logged.messages if "please report" in message]
    if outcome.verdict == "right" and unfused:
        outcome = Outcome("error", unfused[0])
    elif outcome.verdict in ("right", "wrong") and not fused.variants and logged.messages:
        # It ran unfused, and then dropout draws other numbers.
        outcome = Outcome("refused", "; ".join(logged.messages))
    _count(outcome, fused)
    outcome.seconds = time.perf_counter() - started
    return outcome


class _Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _count(outcome: Outcome, fused: Fused) -> None:
    calls: Counter[str] = Counter()
    for variant in fused.variants:
        for part in (variant.forward, variant.backward):
            steps = part[1].steps if part is not None else []
            called = [step for step in steps if isinstance(step, Call)]
            calls.update(str(step.target) for step in called)
            outcome.kernels += len(steps) - len(called)
    outcome.calls = dict(calls)
    outcome.captures = len(fused.variants)


def _judged(program: Program, fused: Fused, device: str) -> Outcome:
    for run in range(RUNS):
        try:
            exact = _exact(program, run, device)
            eager = _run(program, program.function(), arguments(program, run, device), device)
        except Exception as error:
            return Outcome("invalid", f"eager: {error}")
        try:
            mine = _run(program, fused, arguments(program, run, device), device)
        except CaptureError:
            raise
        except Exception as error:
            return Outcome("error", f"{type(error).__name__}: {error}")
        yardstick = Yardstick(eager, exact, functools.partial(_noisy, program, run, device))
        found = wrong(_names(program), mine, yardstick)
        if found:
            return Outcome("wrong", f"run {run}: {found}")
    return Outcome("right")


def _names(program: Program) -> list[str]:
    taken = [a.name for a in program.arguments if a.requires_grad]
    return [*program.results, *(f"the gradient of {name}" for name in taken)]


def _exact(program: Program, run: int, device: str) -> Results:
    given = [widened(value) for value in arguments(program, run)]
    return _run(program, program.function(exact=True), given, device, Exact())


def _noisy(program: Program, run: int, device: str, noise: Noise) -> Results:
    given = [noise.argument(value) for value in arguments(program, run, device)]
    return _run(program, program.function(), given, device, noise)


def _run(
    program: Program,
    function: Any,
    given: list[Any],
    device: str,
    mode: TorchDispatchMode | None = None,
) -> Results:
    """Results, then gradients, for cotangents that the seed decides: the same in every dtype. What
    is random is as on `device`, and `mode` is on while the function and its backward run."""
    torch.manual_seed(program.seed)
    within = mode or nullcontext()
    if isinstance(function, Fused):
        results = list(function(*given))
    else:
        with AsFused(_state(device, given)), within:
            results = list(function(*given))
    wanted = [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad]
    if not wanted:
        return results
    random = torch.Generator()
    random.manual_seed(program.seed)
    cotangents = {
        at: torch.randn(r.shape, generator=random, device="cpu").bfloat16().to(r.device, r.dtype)
        for at, r in enumerate(results)
        if r.is_floating_point()
    }
    if isinstance(mode, Noise):  # what the backward is given
        cotangents = {at: mode.argument(each) for at, each in cotangents.items()}
    at = [i for i in cotangents if results[i].requires_grad]
    if not at:
        return [*results, *([None] * len(wanted))]
    with within:
        gradients = torch.autograd.grad(
            [results[i] for i in at], wanted, [cotangents[i] for i in at], allow_unused=True
        )
    return [*results, *gradients]


def _state(device: str, given: list[Any]) -> torch.Tensor:
    """Of the random numbers: drawn on `device`, and moved to where the program runs."""
    there = next(v.device for v in given if isinstance(v, torch.Tensor))
    drawn: torch.Tensor = draws.ops.state(torch.device(device))
    return drawn.to(there)
