"""The learner's tries under this machine's roof: where each exercise began, and where it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from megafuse.bench.result import Roofs
from megafuse.learn import figures
from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.findings import Run
from megafuse.learn.exercises.folder import Folder
from megafuse.learn.figures import Figure, Point

DEVICES = {"cpu": "your CPU", "cuda": "your GPU"}
Tries = Mapping[Exercise, tuple[Run, Run]]  # first and best


def tries(exercises: Sequence[Exercise], folder: Folder, device: str) -> Tries:
    """Of each exercise that was timed on this device."""
    found = {exercise: folder.runs(exercise, device) for exercise in exercises}
    return {exercise: runs for exercise, runs in found.items() if runs is not None}


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
