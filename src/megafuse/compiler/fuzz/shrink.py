"""A failing program made small: every change that keeps it failing in the same way is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from megafuse.compiler.fuzz.arguments import arguments
from megafuse.compiler.fuzz.program import RUNS, Argument, Program
from megafuse.compiler.fuzz.trial import Outcome

Trial = Callable[[Program], Outcome]

MOST_TRIALS = 60


def shrunk(program: Program, outcome: Outcome, trial: Trial, most: int = MOST_TRIALS) -> Program:
    """The smallest program found that fails as this one does."""
    tried: set[str] = set()
    left = most
    while True:
        for smaller in _smaller(program):
            text = repr(smaller)
            if text in tried or not _is_valid(smaller):
                continue
            tried.add(text)
            left -= 1
            if left < 0:
                return program
            if _alike(trial(smaller), outcome):
                program = smaller
                break
        else:
            return program


def _alike(one: Outcome, other: Outcome) -> bool:
    """The same kind of failure: an error by its first words, not by the names in it."""
    return one.verdict == other.verdict and _kind(one.message) == _kind(other.message)


def _kind(message: str) -> str:
    return message.split(":")[0] if not message.startswith("run ") else "run"


def _smaller(program: Program) -> Iterator[Program]:
    """What could be left out or made simpler, the largest parts first."""
    for name in program.results:
        if len(program.results) > 1:
            yield replace(program, results=(name,)).without_dead_code()
    for at in reversed(range(len(program.statements))):
        yield from _ending_before(program, at)
    for at in range(len(program.statements)):
        yield from _starting_after(program, at)
    for at in range(len(program.results)):
        rest = program.results[:at] + program.results[at + 1 :]
        if rest:
            yield replace(program, results=rest).without_dead_code()
    yield from _without_gradients(program)
    yield from _simpler_arguments(program)


def _ending_before(program: Program, at: int) -> Iterator[Program]:
    """Without the statement: its operands are results in its place."""
    statement = program.statements[at]
    if not set(statement.targets) & set(program.results):
        return
    uses = tuple(sorted(u for u in statement.uses if not u.startswith("n")))
    kept = tuple(r for r in program.results if r not in statement.targets)
    for use in uses:
        yield replace(program, results=(*kept, use)).without_dead_code()


def _starting_after(program: Program, at: int) -> Iterator[Program]:
    """What the statement makes is an argument instead."""
    statement = program.statements[at]
    values = _values(program, statement.targets)
    if values is None:
        return
    grads = any(a.requires_grad for a in program.arguments)
    given = [
        Argument(
            name.replace("v", "a9"),
            str(runs[0].dtype).removeprefix("torch."),
            tuple(tuple(t.shape) for t in runs),
            requires_grad=grads and runs[0].is_floating_point(),
        )
        for name, runs in zip(statement.targets, values, strict=True)
    ]
    names = {t: a.name for t, a in zip(statement.targets, given, strict=True)}
    rest = [s for i, s in enumerate(program.statements) if i != at]
    statements = [replace(s, text=_renamed(s.text, names)) for s in rest]
    results = tuple(names.get(r, r) for r in program.results)
    more = (*program.arguments, *given)
    made = replace(program, arguments=more, statements=tuple(statements), results=results)
    yield made.without_dead_code()


def _renamed(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\b[anv]\d+\b", lambda m: names.get(m[0], m[0]), text)


def _values(program: Program, names: tuple[str, ...]) -> list[list[torch.Tensor]] | None:
    """What eager has for these names, for each run."""
    function = replace(program, results=names).function()
    try:
        runs = [function(*arguments(program, run)) for run in range(RUNS)]
    except Exception:
        return None
    return [[run[i] for run in runs] for i in range(len(names))]


def _without_gradients(program: Program) -> Iterator[Program]:
    wanted = [a for a in program.arguments if a.requires_grad]
    for chosen in [wanted, *([a] for a in wanted)] if len(wanted) > 1 else [wanted]:
        if chosen:
            yield _with(program, [replace(a, requires_grad=False) for a in chosen])


def _simpler_arguments(program: Program) -> Iterator[Program]:
    tensors = [a for a in program.arguments if not a.is_number]
    sizes = sorted({size for a in tensors for each in a.each for size in each if size > 3})
    for size in reversed(sizes):
        for new in (3, 5) if size > 5 else (3,):
            yield _with(program, [_resized(a, size, new) for a in tensors])
    for a in tensors:
        if a.layout != "contiguous":
            yield _with(program, [replace(a, layout="contiguous")])
        if a.values != "normal":
            yield _with(program, [replace(a, values="normal")])
        if a.dtype in ("float64", "float16", "bfloat16"):
            yield _with(program, [replace(a, dtype="float32")])


def _resized(argument: Argument, old: int, new: int) -> Argument:
    each = tuple(tuple(new if s == old else s for s in shape) for shape in argument.each)
    return replace(argument, each=each)


def _with(program: Program, changed: list[Argument]) -> Program:
    by_name = {a.name: a for a in changed}
    return replace(program, arguments=tuple(by_name.get(a.name, a) for a in program.arguments))


def _is_valid(program: Program) -> bool:
    if not any(not a.is_number for a in program.arguments):
        return False
    try:
        for run in range(RUNS):
            program.function()(*arguments(program, run))
    except Exception:
        return False
    return True
