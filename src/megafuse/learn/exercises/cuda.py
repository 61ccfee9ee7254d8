"""How a CUDA exercise is checked: a Task says what is computed, `check` runs it.

Each case on the emulator, against float64; then what the kernel asked of memory; then through
NVRTC; and on a GPU, if there is one, right and timed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import chain

import torch
from torch import Tensor

from megafuse.learn.exercises import gpu, patterns, roof, tensors
from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.climbed import ASKED
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.emulator.run import Counted, Emulated, Kernel, Launch
from megafuse.learn.exercises.emulator.source import without_comments
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.native import compile_stop, pasted
from megafuse.learn.exercises.work import Work
from megafuse.learn.pictures import access
from megafuse.runtime import nvrtc
from megafuse.runtime.cpp import CompileError

__all__ = ["Arrays", "Case", "Kernel", "Launch", "Look", "Size", "Task", "check", "task"]

Size = tuple[int, ...]
Arrays = dict[str, Tensor]
Limit = Callable[[Counted, Size], Finding]

# In front of the learner's file where NVRTC compiles it.
TYPES = "using Input = const float*;\nusing Output = float*;\nusing Counter = unsigned*;\n"
TYPES += "#define INFINITY __int_as_float(0x7f800000)\n"


@dataclass(frozen=True)
class Case:
    """A size to run; `says` is told when its result is wrong."""

    what: str
    size: Size
    says: str


@dataclass(frozen=True)
class Look:
    """What a file says of the mistake that the emulator found: `seen` is asked of its source,
    without comments."""

    seen: Callable[[str], bool]
    says: str

    @staticmethod
    def without(pattern: str, says: str) -> Look:
        """The source has no such thing."""
        return Look(lambda source: re.search(pattern, source) is None, says)

    @staticmethod
    def having(pattern: str, says: str) -> Look:
        """The source has such a thing."""
        return Look(lambda source: re.search(pattern, source) is not None, says)


# What a mistake means in an exercise; it may depend on the array, or on who met whom.
Meaning = str | Callable[[Fault], str]
# What a typical mistake computes: the array, the sentence that names the mistake, the result in
# float64. A Look in place of the sentence is for a result that other mistakes have, too.
Known = tuple[str, str | Look, Tensor]


@dataclass(frozen=True)
class Task:
    """What a kernel must compute, and how little it may ask of memory."""

    kernel: Kernel
    launch: Callable[[Size], Launch]
    make: Callable[[Size, str], Arrays]  # in the order of the kernel's parameters
    exact: Callable[[Arrays], Arrays]  # float64, of each array that is a result
    cases: tuple[Case, ...]
    large: Size  # timed on a GPU
    least: Callable[[Size], int]  # bytes that must move
    operations: Callable[[Size], int]  # of floats; 0 where nothing is computed
    limits: tuple[Limit, ...] = ()  # of the last case
    tolerance: float = 1e-5
    means: Mapping[Kind, Meaning] = field(default_factory=dict)  # what a mistake means here
    looks: tuple[Look, ...] = ()  # the first that fits comes before what a mistake means
    # What typical mistakes compute.
    known: Callable[[Arrays], Iterator[Known]] = lambda arrays: iter(())
    # What is wrong wherever it stands, so that it need not be told by the result.
    never: tuple[Look, ...] = ()


def task(exercise: Exercise) -> Task:
    """That of a CUDA exercise."""
    made: Task = import_module(f"{__package__}.{exercise.name}.check").TASK
    return made


def check(task: Task, work: Work) -> Iterator[Finding]:
    """The first wrong case ends it: the others would say the same again."""
    work.stage("your kernel was compiled and run")
    emulated = Emulated(work.path, task.kernel, work.trail)
    for case in task.cases:
        arrays = task.make(case.size, "cpu")
        exact = task.exact(arrays)
        try:
            counted = emulated.run(arrays, task.launch(case.size))
        except Fault as fault:
            yield _meant(task, case, fault, work)
            return
        for finding in _results(task, case, arrays, exact, _source(work)):
            yield finding
            if not finding.ok:
                return
    for limit in task.limits:
        yield _drawn(limit(counted, task.cases[-1].size), counted)
    yield _busy(counted)
    cubin = _compiled(work)
    yield cubin if isinstance(cubin, Finding) else _made(cubin)
    if work.device == "cuda" and isinstance(cubin, bytes):
        yield from _on_the_gpu(task, cubin, counted, _source(work))
    else:
        yield _share(task, counted)


def _meant(task: Task, case: Case, fault: Fault, work: Work) -> Finding:
    """A mistake that the emulator found, with what it means in this exercise."""
    looked = _first(task.never + task.looks, _source(work))
    meaning = task.means.get(fault.kind, "")
    told = (looked, meaning if isinstance(meaning, str) else meaning(fault), fault.finding.says)
    says = "\n\n".join(filter(None, told))
    return replace(fault.finding, found=f"{case.what}: {fault.finding.found}", says=says)


def _source(work: Work) -> str:
    return without_comments(work.path.read_text(encoding="utf-8", errors="replace"))


def _first(looks: tuple[Look, ...], source: str) -> str:
    return next((look.says for look in looks if look.seen(source)), "")


def _results(
    task: Task, case: Case, arrays: Arrays, exact: Arrays, source: str
) -> Iterator[Finding]:
    for name, values in exact.items():
        what = case.what if len(exact) == 1 else f"{case.what}, {name}"
        result = arrays[name].cpu()
        known = _named(task, arrays, name, source)
        yield tensors.close(
            what, result, values.cpu(), result.dtype, task.tolerance, case.says, known
        )


def _named(task: Task, arrays: Arrays, name: str, source: str) -> Iterator[tuple[str, Tensor]]:
    """What typical mistakes make of one array, and the sentence for each."""
    result = arrays[name].cpu().double()
    if looked := _first(task.never, source):
        yield looked, result
    if not result.any() and _WHOLE.search(source):
        yield _NOTHING, result
    for array, says, wrong in chain(task.known(arrays), _left_out(task, arrays)):
        if array == name and (isinstance(says, str) or says.seen(source)):
            yield (says if isinstance(says, str) else says.says), wrong.cpu()


_WHOLE = re.compile(r"(?<![\w.])\d+\s*/\s*\d+(?![\w.])")
_NOTHING = (
    "Everything is 0. In C++ a quotient of two whole numbers is a whole number, so that 3 / 10 is "
    "0: write 0.3f, or 3.0f / 10."
)


def _left_out(task: Task, arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    """What comes out without one of the inputs, in any exercise."""
    inputs = [name for name, letter in zip(arrays, _letters(task), strict=True) if letter == "I"]
    for name in inputs:
        for value in (0.0, 1.0):
            without = arrays | {name: torch.full_like(arrays[name], value)}
            said = f"This is what comes out if {name} were {value:.0f} everywhere: is it left out?"
            for result, wrong in task.exact(without).items():
                yield result, said, wrong


def _drawn(finding: Finding, counted: Counted) -> Finding:
    """With a picture of the line that a limit is about, or of the first one."""
    return finding if finding.drawn else replace(finding, drawn=access.of(finding, counted))


def _busy(counted: Counted) -> Finding:
    """Divergence: lanes that wait while others of their warp run a line alone."""
    lanes, asked = (
        {n: getattr(line, a) + getattr(line, b) for n, line in counted.lines.items()}
        for a, b in (("lanes", "shared_lanes"), ("requests", "shared_requests"))
    )
    each = {number: lanes[number] / asked[number] for number in lanes if asked[number]}
    line = min(each, key=lambda number: each[number])
    average = sum(lanes.values()) / sum(asked.values())
    found = f"{average:.0f} of 32 at an access; fewest in line {line}, {each[line]:.0f}"
    return Finding("lanes busy", None, found)


def _compiled(work: Work) -> bytes | Finding:
    """For this machine's GPU, or for an H100 where there is none."""
    problem = nvrtc.problem()
    if problem is not None:
        return Finding("NVRTC", None, f"not compiled for a GPU: {problem}")
    major, minor = torch.cuda.get_device_capability() if work.device == "cuda" else (9, 0)
    try:
        return nvrtc.compile_cubin(TYPES + pasted(work.path), f"sm_{major}{minor}", [])
    except CompileError as error:
        return compile_stop(error, work.path).finding


def _made(cubin: bytes) -> Finding:
    return Finding("NVRTC", True, f"compiles: {len(cubin)} bytes of machine code")


def _share(task: Task, counted: Counted) -> Finding:
    """Without a GPU: what its sectors leave of the roof."""
    least, moved = task.least(task.cases[-1].size), counted.bytes_moved
    found = f"{min(least / moved, 1.0):.0%} at most: {moved:,} bytes asked for, {least:,} needed"
    return Finding("of the roof", None, found, _NO_GPU)


_NO_GPU = (
    "Counted, not timed: there is no GPU here. What a GPU's caches hold is not in these numbers, "
    "so they are what the kernel asks for. On a GPU the same command times it."
)


def _on_the_gpu(task: Task, cubin: bytes, counted: Counted, source: str) -> Iterator[Finding]:
    kernel = gpu.Kernel(cubin, task.kernel.name)
    case = replace(task.cases[-1], what="on the GPU")
    arrays = task.make(case.size, "cuda")
    exact = task.exact(arrays)
    _run(task, kernel, case.size, arrays)
    yield from _results(task, case, arrays, exact, source)
    large = task.make(task.large, "cuda")

    def call() -> None:
        for name, letter in zip(large, _letters(task), strict=True):
            if letter == "C":
                large[name].zero_()
        _run(task, kernel, task.large, large)

    least = task.least(task.large)
    needless = counted.bytes_moved / task.least(task.cases[-1].size)
    operations = task.operations(task.large)
    yield roof.share(call, least, "cuda", operations=operations, moved=needless * least)


def _letters(task: Task) -> str:
    return "".join(letter for letter in task.kernel.parameters if letter in "IOC")


def _run(task: Task, kernel: gpu.Kernel, size: Size, arrays: Arrays) -> None:
    launch = task.launch(size)
    tensors_, numbers = iter(arrays.values()), iter(launch.numbers)
    reals = iter(launch.reals)
    sources: dict[str, Iterator[Tensor | float]] = {"i": numbers, "f": reals}
    sources |= dict.fromkeys("IOC", tensors_)
    arguments = [next(sources[letter]) for letter in task.kernel.parameters]
    kernel.launch(launch.grid, launch.block, *arguments)


# ---- limits


def _judged(what: str, ok: bool, found: str, says: str, number: float, unit: str) -> Finding:
    return Finding(what, ok, found, "" if ok else says, number=float(number), unit=unit)


def moved(least: Callable[[Size], int], says: str, spare: float = 1.1, apart: str = "") -> Limit:
    """Bytes of all sectors that the warps ask for. `apart` is told in place of `says` where lanes
    lie apart: then each float is not fetched too often, but with others that nobody wants."""

    def limit(counted: Counted, size: Size) -> Finding:
        goal = least(size)
        ok = counted.bytes_moved <= spare * goal
        line, each = counted.worst("sectors", "requests")
        found = f"{counted.bytes_moved:,} asked for, goal {goal:,}"
        found += f"; at most {each:.0f} sectors a request, in line {line}"
        told = apart if apart and _lie_apart(counted) else says
        return _judged("bytes moved", ok, found, told, counted.bytes_moved, ASKED)

    return limit


def _lie_apart(counted: Counted) -> bool:
    """Whether lanes that ask together get a sector each. Side by side, eight share one, or with
    a float4 two."""
    return any(
        line.lanes >= 2 * line.requests and line.sectors > 0.6 * line.lanes
        for line in counted.lines.values()
    )


def stretch(each: str) -> str:
    """Told where every lane has a stretch of the row; `each` says what lane l should take."""
    return (
        "Each float is read once, but in the wrong order: each lane walks a stretch of its own, so "
        "that the 32 lanes together touch 32 sectors, and use one float of each. Lanes stand side "
        f"by side: {each}"
    )


def banks(says: str, most: float = 1.0) -> Limit:
    """Passes that a request of shared memory takes."""

    def limit(counted: Counted, size: Size) -> Finding:
        line, each = counted.worst("passes", "shared_requests")
        if not line:
            return Finding("shared banks", None, "no shared memory is used")
        ok = each <= most
        found = (
            f"{each:.3g} pass{'es' * (each > 1)} a request at most, in line {line}; the least is 1"
        )
        return _judged("shared banks", ok, found, says, each, "passes a request")

    return limit


def meetings(most: Callable[[Size], int], says: str) -> Limit:
    """How often a block's threads wait for each other, over all blocks' warps."""

    def limit(counted: Counted, size: Size) -> Finding:
        waits, goal = counted.total("barriers"), most(size)
        ok = waits <= goal
        found = f"warps wait {waits} times, goal {goal}"
        return _judged("barriers", ok, found, says, waits, "times waited")

    return limit


def instructions(most: Callable[[Size], int], says: str) -> Limit:
    """Loads and stores, as instructions of a warp."""

    def limit(counted: Counted, size: Size) -> Finding:
        asked, goal = counted.total("requests"), most(size)
        ok = asked <= goal
        found = f"{asked} loads and stores of a warp, goal {goal}"
        return _judged("requests", ok, found, says, asked, "loads and stores")

    return limit


# ---- arrays


def random(*shape: int, device: str, scale: float = 1.0, mean: float = 0.0) -> Tensor:
    return torch.randn(*shape, device=device) * scale + mean


def empty(*shape: int, device: str) -> Tensor:
    """What nobody writes is seen."""
    return patterns.blank(*shape, device=device)


def blocks(elements: int, each: int) -> int:
    return -(-elements // each)
