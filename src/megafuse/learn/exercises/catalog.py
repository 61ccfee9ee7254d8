"""The exercises, read from their folders. picture.txt is a drawing of 80 columns at most.

task.md is plain text in this order:

    # 3. Walk along the rows
    What the learner takes home, in a line or two: it stands in the list.

    The task. A line with four spaces in front stays as it is.

    ## Hint
    The first hint.

    ## Hint
    The next, which gives more away.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from megafuse.learn.exercises.findings import Finding, Refused

if TYPE_CHECKING:
    from megafuse.learn.exercises.work import Work

HERE = Path(__file__).resolve().parent
_HEAD = re.compile(r"# (\d+)\. (.+)\n((?:.+\n)+)\n")
_HINT = "\n## Hint\n"
FIRST_TRY = "your first try"
_BESIDE = {"in_a_model": "the model as it was", "your_own": "PyTorch"}


@dataclass(frozen=True)
class Exercise:
    """One folder."""

    number: int
    name: str
    title: str
    learn: str
    task: str
    hints: tuple[str, ...]
    picture: str
    starter: Path
    solution: Path

    @property
    def file(self) -> str:
        """What the learner's file is called."""
        return f"{self.name}{self.starter.suffix}"

    @property
    def language(self) -> str:
        return {".py": "Python", ".cu": "CUDA"}.get(self.starter.suffix, "C++")

    @property
    def timed_beside(self) -> bool:
        """Whether each check times PyTorch's way too. Most exercises begin slow instead."""
        return self.name in _BESIDE

    @property
    def against(self) -> str:
        """What the best number is held against."""
        return _BESIDE.get(self.name, FIRST_TRY)

    @property
    def is_python(self) -> bool:
        return self.starter.suffix == ".py"

    @property
    def folder(self) -> Path:
        return self.starter.parent

    def check(self, work: Work) -> Iterable[Finding]:
        """Runs the learner's code, in this process."""
        module = importlib.import_module(f"{__package__}.{self.name}.check")
        return cast(Callable[["Work"], Iterable[Finding]], module.check)(work)


@functools.cache
def exercises() -> tuple[Exercise, ...]:
    """In order of difficulty."""
    read = [_read(task.parent) for task in HERE.glob("*/task.md")]
    return tuple(sorted(read, key=lambda exercise: exercise.number))


def find(named: str) -> Exercise:
    """By name or by number; an error names what comes closest."""
    for exercise in exercises():
        if named in (exercise.name, str(exercise.number)):
            return exercise
    names = [exercise.name for exercise in exercises()]
    close = difflib.get_close_matches(named, names, n=1, cutoff=0.5)
    hint = f" Did you mean `megafuse learn {close[0]}`?" if close else ""
    raise Refused(
        f"there is no exercise {named!r}.{hint}\n"
        f"Exercises: {', '.join(names)}, or their numbers 1 to {len(names)}."
    )


def _read(folder: Path) -> Exercise:
    text = (folder / "task.md").read_text(encoding="utf-8")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"{folder / 'task.md'} does not begin as catalog.py says")
    task, *hints = text[head.end() :].split(_HINT)
    (starter,), (solution,) = folder.glob("starter.*"), folder.glob("solution.*")
    return Exercise(
        number=int(head[1]),
        name=folder.name,
        title=head[2],
        learn=" ".join(head[3].split()),
        task=task.strip("\n").rstrip(),
        hints=tuple(hint.strip("\n").rstrip() for hint in hints),
        picture=(folder / "picture.txt").read_text(encoding="utf-8").rstrip(),
        starter=starter,
        solution=solution,
    )
