"""Whether a contender really does the work that it is timed for.

Checked before it is timed, and again right after, with a call that looks like the timed ones:

- its results are plain tensors, right by accuracy.py's rule, on memory that held NaN before;
- new values in the same tensors give new results, and an earlier result stays as it was;
- it leaves its arguments alone;
- when its stream is done (on the CPU: when it has returned), so is its work;
- and it is not faster than the memory that its arguments come from (`below_floor`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megafuse.bench import accuracy
from megafuse.bench.accuracy import leaves
from megafuse.bench.arguments import Arguments
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.job import Job
from megafuse.bench.result import Accuracy, Roofs

# A measured roof may be missed by this much before a time counts as impossible: clocks and
# neighbours vary between the day the roof was measured and the row.
_ROOF_TOLERANCE = 1.25


@dataclass(frozen=True)
class Expected:
    """What eager and float64 give on the arguments' present values."""

    eager: list[Tensor]
    exact: list[Tensor] | None

    @property
    def is_small(self) -> bool:
        """Whether the allocator may hand the memory of such results out again in any order.

        `_poison` does not reach all of it then, and the results of the contender before may pass
        for those of one that does nothing: ask each for values of its own.
        """
        return sum(t.nbytes for t in self.eager) < 1 << 16

    @staticmethod
    def of(job: Job, args: Sequence[Any]) -> Expected:
        eager = [t.detach() for t in leaves(job.step(job.reference)(*args))]
        if job.random:
            return Expected(eager, None)
        try:
            exact = accuracy.in_float64(job.step(accuracy.widened(job.reference)), args)
        except (RuntimeError, TypeError, NotImplementedError):  # made for one dtype only
            return Expected(eager, None)
        return Expected(eager, [t.detach() for t in exact])


class Expectations:
    """What is expected of every contender alike, worked out once for each turn of the arguments."""

    def __init__(self, job: Job, arguments: Arguments) -> None:
        self._job, self._arguments = job, arguments
        self._known: dict[int, Expected] = {}

    def at(self, turn: int) -> tuple[list[Any], Expected]:
        """The first set of arguments with the values of this turn, and what they should give."""
        self._arguments.renew(0, turn)
        args = self._arguments[0]
        if turn not in self._known:
            self._known[turn] = Expected.of(self._job, args)
        return args, self._known[turn]


def check(
    job: Job, contender: Contender, function: Function, expectations: Expectations
) -> tuple[str | None, Accuracy | None]:
    """What is wrong with the contender, if anything, and how accurate it is."""
    step = job.step(function)
    args, expected = expectations.at(0)
    before = [t.detach().clone() for t in leaves(args)]
    first = _Call.of(step, args, expected, job)
    if first.problem:
        return first.problem, None
    measured = accuracy.measure(first.read, expected.exact) if expected.exact is not None else None
    for i, (was, now) in enumerate(zip(before, leaves(args), strict=True)):
        if not same(was, now):
            return f"changes its argument {i + 1} in place", None
    problem = _goes_on(first, job.device)
    if problem:
        return problem, None
    problem = _on_new_values(job, step, *expectations.at(1), first.read)
    if problem:
        return problem, None
    if not contender.replays_graph and not first.stands:
        return "overwrites its earlier result: it returns the same memory each time", None
    return None, measured


def spot_check(job: Job, function: Function, args: Sequence[Any], expected: Expected) -> str | None:
    """One more call, that the contender cannot tell from a timed one."""
    problem = _Call.of(job.step(function), args, expected, job).problem
    return f"after it was timed: {problem}" if problem else None


def below_floor(
    job: Job, seconds: float, roofs: Roofs | None, copied: float | None = None
) -> str | None:
    """Says so if so short a time cannot be: a broken measurement, or no work.

    `copied` is the rate of the copy that was timed beside it.
    """
    if job.work is None or roofs is None:
        return None
    memory = max(roofs.copy, roofs.read, copied or 0) * _ROOF_TOLERANCE
    compute = max(roofs.gemm.values()) * _ROOF_TOLERANCE
    reading, computing = job.work.bytes_from_memory / memory, job.work.flops / compute
    floor = max(reading, computing)
    if seconds >= floor:
        return None
    needed = "to read the arguments" if reading >= computing else "for the arithmetic"
    return (
        f"broken measurement: {seconds * 1e6:.2f} µs is below the {floor * 1e6:.2f} µs that this "
        f"machine needs {needed}"
    )


@dataclass(frozen=True)
class _Call:
    """One call: its results, what they were when the call was over, and what is wrong with them."""

    results: list[Tensor]
    read: list[Tensor]
    problem: str | None
    given: frozenset[int] = frozenset()  # the memory of its arguments

    @staticmethod
    def of(step: Function, args: Sequence[Any], expected: Expected, job: Job) -> _Call:
        _poison(expected.eager)
        try:
            out = step(*args)
        except Exception as error:  # a contender may fail in any way, and the others go on
            return _Call([], [], told(error))
        results = leaves(out)
        odd = next((t for t in results if type(t) not in (Tensor, torch.nn.Parameter)), None)
        if odd is not None:
            return _Call([], [], f"returns a {type(odd).__name__}, not a plain tensor")
        read = [t.detach().clone() for t in results]  # at once, on the stream of the call
        problem = accuracy.wrong(read, expected.eager, expected.exact, job.random)
        return _Call(
            [t.detach() for t in results], read, problem, frozenset(map(_memory, leaves(args)))
        )

    @property
    def stands(self) -> bool:
        """Whether the results still are what they were. One that is an argument is what that is:
        the gradient of x + (…).detach() is the incoming one."""
        pairs = zip(self.results, self.read, strict=True)
        return all(same(now, was) for now, was in pairs if _memory(now) not in self.given)


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _on_new_values(
    job: Job,
    step: Function,
    args: Sequence[Any],
    expected: Expected,
    earlier: Sequence[Tensor],
) -> str | None:
    second = _Call.of(step, args, expected, job)
    if second.problem and second.read and not job.random and all(map(same, second.read, earlier)):
        return "cached result: new values in the same tensors gave the old result"
    return second.problem and f"on new values in the same tensors: {second.problem}"


def _goes_on(call: _Call, device: str) -> str | None:
    """Whether the result changes after it was read: work that the call did not wait for."""
    if device == "cuda":
        torch.cuda.synchronize()
    else:
        time.sleep(0.02)
    if call.stands:
        return None
    return "goes on writing its result after it returned: its work was not waited for"


def _poison(like: Sequence[Tensor]) -> None:
    """Leaves NaN (−1 in integers) in the memory that the allocator will hand out next.

    More than one tensor of each: results of other contenders lie there, on the same arguments.
    """
    filled = [
        torch.full_like(t, float("nan") if t.is_floating_point() else -1)
        for t in like
        for _ in range(4)
    ]
    del filled


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, NaN included."""
    return torch.equal(_bits(a), _bits(b))


def _bits(t: Tensor) -> Tensor:
    if t.is_complex():
        t = torch.view_as_real(t.detach().resolve_conj())
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return t.detach().contiguous().view(kinds[t.element_size()])


def told(error: Exception) -> str:
    """An exception's kind, and what it says, short."""
    return f"{type(error).__name__}: {first_line(error)}"


def first_line(error: Exception) -> str:
    """What an exception says, short."""
    return (str(error).strip().splitlines() or [""])[0][:160]
