"""The learner's tries under this machine's roof: where each exercise began, and where it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from megafuse.bench.result import Roofs
from megafuse.learn import figures
from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.findings import Run
from megafuse.learn.exercises.folder import Folder
from megafuse.learn.figures import Bar, Figure, Point

DEVICES = {"cpu": "your CPU", "cuda": "your GPU"}
ASKED = "bytes asked for"  # the unit of what the emulator counts
Tries = Mapping[Exercise, tuple[Run, Run]]  # first and best


def tries(exercises: Sequence[Exercise], folder: Folder, device: str) -> Tries:
    """Of each exercise that was timed on this device."""
    found = {exercise: folder.runs(exercise, device) for exercise in exercises}
    return {exercise: runs for exercise, runs in found.items() if runs is not None}


def counted(exercises: Sequence[Exercise], folder: Folder) -> Figure | None:
    """CUDA kernels by what they ask for: the share of the roof that their bytes leave at most."""
    bars = []
    for exercise in exercises:
        asked = folder.numbers(exercise).get(ASKED, {})
        if exercise.starter.suffix == ".cu" and min(asked.get(k, 0) for k in ("first", "best")) > 0:
            first, best = (min(_least(exercise) / asked[k], 1.0) for k in ("first", "best"))
            told = f"{first:.0%}, then {best:.0%}" if best > first else f"{best:.0%}"
            bars.append(Bar(f"{exercise.number} {exercise.title}", 100 * best, told))
    if not bars:
        return None
    return figures.bars(
        "How near the roof your CUDA kernels may come",
        "At most, by what they asked for on the emulator: the bytes that must move over those that "
        "the kernel asks for, at your first try and at your best. On a GPU its caches hold some of "
        "them.",
        bars,
        "%",
        roof=100.0,
    )


def _least(exercise: Exercise) -> int:
    """The bytes that must move in the case that is counted."""
    from megafuse.learn.exercises.cuda import task  # imports the check, and torch

    made = task(exercise)
    return made.least(made.cases[-1].size)


def figure(made: Tries, device: str, roofs: Roofs) -> Figure:
    """An open circle for the first try, a number for the best, a line between."""
    points = [_point(exercise, *runs) for exercise, runs in made.items()]
    alone = [run.copy for runs in made.values() for run in runs if run.threads == 1]
    return figures.roofline(
        f"Under the roof of {DEVICES[device]}",
        _caption(points, roofs, device),
        roofs.copy,
        roofs.gemm["float32"],
        points,
        one_thread=max(alone, default=0.0),
    )


def _caption(points: Sequence[Point], roofs: Roofs, device: str) -> str:
    told = (
        "Each number is an exercise: the open circle is your first try, the disc your best. Fewer "
        "bytes move it to the right, better use of the machine moves it up. The roof was measured "
        "here: a copy in memory, and a float32 matrix product. Shares are those of the copy that "
        "was timed beside a try."
    )
    if any(point.rate > 1.05 * roofs.copy * point.intensity for point in points):
        told += " A point above the slope: some of its floats came from a cache."
    if device == "cpu":
        told += " CUDA kernels get their place on a machine with a GPU, where they are timed."
    return told


def _point(exercise: Exercise, first: Run, best: Run) -> Point:
    was, now = _stands(exercise, first), _stands(exercise, best)
    return replace(now, number=exercise.number, before=None if first == best else was)


def _stands(exercise: Exercise, run: Run) -> Point:
    intensity, rate = run.operations / run.bytes_moved, run.operations / run.seconds
    return Point(exercise.title, intensity, rate, bandwidth=run.copy or None)
