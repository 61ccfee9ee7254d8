"""All exercises as one page of Markdown, with their pictures: `megafuse learn --markdown`.

docs/exercises.md is what it prints, and a test holds it to that. Of CUDA exercises it shows what a
warp's lanes really touched where starter and solution ask for most in vain: a run on the emulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.cuda import task
from megafuse.learn.exercises.emulator.faults import Fault
from megafuse.learn.exercises.emulator.run import Counted, Emulated, Request
from megafuse.learn.pictures import access

_HEAD = """# The exercises

Each is a file to change, checked at once: `megafuse learn NAME` shows the task, `megafuse learn
NAME --check` says what is wrong with your file and why. None needs a GPU: CUDA kernels run on an
emulator that counts sectors, bank conflicts and waiting, and names races, missed barriers and
accesses outside, with the line. On a GPU they are timed too. `megafuse learn --certificate` writes
down how far you came.

This page is what `megafuse learn --markdown` prints.
"""


def text(exercises: Sequence[Exercise]) -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(exercise) for exercise in exercises)])


def _section(exercise: Exercise) -> str:
    head = f"## {exercise.number}. {exercise.title}\n\n{exercise.learn}\n"
    named = f"`megafuse learn {exercise.name}`, {exercise.language}\n"
    parts = [head, named, f"```text\n{exercise.picture}\n```\n"]
    if exercise.starter.suffix == ".cu":
        parts.append(_drawn(exercise, "the starter", exercise.starter))
        parts.append(_drawn(exercise, "our solution", exercise.solution))
    return "\n".join(part for part in parts if part)


def _drawn(exercise: Exercise, whose: str, path: Path) -> str:
    """The worst request of a source that runs to its end; nothing for one that is stopped."""
    try:
        request = worst(counted(exercise, path))
    except Fault:
        return ""
    wastes = access.waste(request) > 1
    told = (
        "the access that wastes most" if wastes else "where no access wastes anything, one of them"
    )
    shown = f"In {whose}, {told}:\n\n```text\n{access.text(request)}\n```\n"
    if request.shared or access.waste(request) < 2:
        return shown
    return f"{shown}\n<figure>{access.figure(request, exercise.title).svg}</figure>\n"


def counted(exercise: Exercise, path: Path) -> Counted:
    """The last case of the exercise, on the emulator."""
    made = task(exercise)
    size = made.cases[-1].size
    return Emulated(path, made.kernel).run(made.make(size, "cpu"), made.launch(size))


def worst(run: Counted) -> Request:
    """The first of those that ask for most in vain; those of a few lanes alone do not count."""
    whole = [r for r in run.requests if sum(place is not None for place in r.places) >= 16]
    return max(whole, key=lambda request: (access.waste(request), -request.line))
