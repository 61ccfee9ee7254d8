"""The learner's folder: their files, which are never overwritten, and a small JSON file of what
was shown and solved."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.findings import Finding, Run

NAME = "megafuse-exercises"
State = Literal["new", "open", "done"]


class Folder:
    """Made when the first file goes into it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, exercise: Exercise) -> Path:
        return self.path / exercise.file

    def state(self, exercise: Exercise) -> State:
        """Done is a file that passed as it is now."""
        file = self.file(exercise)
        if not file.exists():
            return "new"
        return "done" if self._remembered("passed").get(exercise.name) == _digest(file) else "open"

    def begin(self, exercise: Exercise) -> bool:
        """Puts the starter there; False where there is a file already."""
        if self.file(exercise).exists():
            return False
        self.path.mkdir(parents=True, exist_ok=True)
        self.file(exercise).write_bytes(exercise.starter.read_bytes())
        return True

    def restart(self, exercise: Exercise) -> Path | None:
        """Puts the starter there; what was there is kept under the name that is returned."""
        file, kept = self.file(exercise), None
        if file.exists() and file.read_bytes() != exercise.starter.read_bytes():
            kept = _free(file)
            file.rename(kept)
        else:
            file.unlink(missing_ok=True)
        self.begin(exercise)
        return kept

    def next_hint(self, exercise: Exercise) -> int:
        """Which hint to show now, from 0 on; after the last one it stays the last."""
        at = min(self.hints_seen(exercise), len(exercise.hints) - 1)
        self._remember("hints", exercise.name, at + 1)
        return at

    def remember_numbers(
        self, exercise: Exercise, findings: Sequence[Finding], passed: bool
    ) -> None:
        """Of each unit the first number that was ever found, and the least of a file that passed:
        what computes something else may be as fast as it likes. Of runs likewise, by device. What
        is timed beside PyTorch is kept with that: another function has another time there."""
        numbers, runs = self.numbers(exercise), self._runs(exercise)
        if passed and exercise.timed_beside:
            numbers, runs = {}, {}
        for finding in findings:
            if finding.number is not None:
                _keep(numbers.setdefault(finding.unit, {}), finding.number, passed, float)
            if finding.run is not None:
                _keep(
                    runs.setdefault(finding.run.device, {}),
                    *(asdict(finding.run), passed, lambda run: run["seconds"]),
                )
        if numbers:
            self._remember("numbers", exercise.name, numbers)
        if runs:
            self._remember("runs", exercise.name, runs)

    def numbers(self, exercise: Exercise) -> dict[str, dict[str, float]]:
        """What remember_numbers kept, by unit."""
        found = _dicts(self._remembered("numbers").get(exercise.name))
        return {
            unit: each
            for unit, each in found.items()
            if all(isinstance(number, int | float) for number in each.values())
        }

    def runs(self, exercise: Exercise, device: str) -> tuple[Run, Run] | None:
        """The first run on this device, and the best that passed."""
        kept = self._runs(exercise).get(device, {})
        try:
            first, best = Run(**kept["first"]), Run(**kept["best"])
        except (KeyError, TypeError):  # none has passed yet, or it was not written here
            return None
        return (first, best) if first.sound and best.sound else None

    def _runs(self, exercise: Exercise) -> dict[str, dict[str, Any]]:
        return _dicts(self._remembered("runs").get(exercise.name))

    def hints_seen(self, exercise: Exercise) -> int:
        shown = self._remembered("hints").get(exercise.name, 0)
        return shown if isinstance(shown, int) else 0

    def remember_passed(self, exercise: Exercise) -> None:
        self._remember("passed", exercise.name, _digest(self.file(exercise)))

    # ---- progress.json

    @property
    def _progress(self) -> Path:
        return self.path / "progress.json"

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self._progress.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # not there yet, or not ours: nothing is lost but marks
            return {}
        return found if isinstance(found, dict) else {}

    def _remembered(self, what: str) -> dict[str, Any]:
        found = self._all().get(what)
        return found if isinstance(found, dict) else {}

    def _remember(self, what: str, name: str, value: int | str | dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        known = self._all() | {what: self._remembered(what) | {name: value}}
        made = self._progress.with_suffix(".tmp")
        made.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        os.replace(made, self._progress)


def _keep(kept: dict[str, Any], new: Any, passed: bool, size: Callable[[Any], float]) -> None:
    """The first stays; the best gives way to a smaller one that passed."""
    kept.setdefault("first", new)
    if passed and ("best" not in kept or size(new) < size(kept["best"])):
        kept["best"] = new


def _dicts(found: Any) -> dict[str, dict[str, Any]]:
    """What is no dictionary of dictionaries was not written here."""
    found = found if isinstance(found, dict) else {}
    return {name: each for name, each in found.items() if isinstance(each, dict)}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _free(file: Path) -> Path:
    """walk.cpp → walk.backup1.cpp, or the next number that is free."""
    number = 1
    while (name := file.with_name(f"{file.stem}.backup{number}{file.suffix}")).exists():
        number += 1
    return name
