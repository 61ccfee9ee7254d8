"""What every exercise has: a number, hints, and texts that fit the terminal."""

from __future__ import annotations

import unicodedata

import pytest

from exercises.checked import EXERCISES


def test_there_are_enough_in_order():
    assert [e.number for e in EXERCISES.values()] == list(range(1, len(EXERCISES) + 1))
    assert len(EXERCISES) >= 20
    cuda = [exercise for exercise in EXERCISES.values() if exercise.starter.suffix == ".cu"]
    assert 2 * len(cuda) >= len(EXERCISES)


def wide(text: str) -> set[str]:
    """Characters that take two columns, and that many fonts have not."""
    return {c for c in text if unicodedata.east_asian_width(c) in "FW"}


@pytest.mark.parametrize("name", EXERCISES)
def test_texts_fit_80_columns(name):
    exercise = EXERCISES[name]
    assert len(exercise.hints) >= 2
    assert len(name) <= 14  # the list's column
    assert exercise.starter.suffix == exercise.solution.suffix
    for file in (exercise.starter, exercise.solution):  # a diff puts one more in front
        assert max(map(len, file.read_text(encoding="utf-8").splitlines())) <= 79
    verbatim = [line for line in exercise.task.splitlines() if line.startswith("    ")]
    assert max(map(len, verbatim), default=0) <= 80
    assert max(map(len, exercise.picture.splitlines())) <= 80
    assert not wide(exercise.picture)
