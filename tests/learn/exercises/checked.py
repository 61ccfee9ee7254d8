"""Checks an exercise on a file that a test wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from megafuse.learn.exercises import catalog
from megafuse.learn.exercises.child import findings
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work
from megafuse.runtime import cpp

EXERCISES = {exercise.name: exercise for exercise in catalog.exercises()}
NEEDS_COMPILER = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
EACH = pytest.mark.parametrize(
    "name",
    [n if e.is_python else pytest.param(n, marks=NEEDS_COMPILER) for n, e in EXERCISES.items()],
)

Texts = str | tuple[str, ...]
# By exercise and by what a learner got wrong: what of the solution becomes what (one text, or
# several), which finding fails, and the sentence that names the mistake.
Mistakes = dict[str, dict[str, tuple[Texts, Texts, str, str]]]


def checking(name: str, path: Path, device: str = "cpu") -> Iterator[Finding]:
    """In this process, as they are found: for code that ends and does not crash."""
    return findings(Work(EXERCISES[name], path, device))


def check(name: str, path: Path, device: str = "cpu") -> list[Finding]:
    """All of them."""
    return list(checking(name, path, device))


def written(name: str, text: str, folder: Path) -> Path:
    path = folder / EXERCISES[name].file
    path.write_text(text, encoding="utf-8")
    return path


def failed(found: Iterable[Finding]) -> Finding:
    """The first thing that is wrong; nothing behind it is looked for."""
    right = []
    for finding in found:
        if finding.ok is False:
            return finding
        right.append(finding)
    raise AssertionError(right)
