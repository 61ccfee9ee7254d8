"""The learner's file, as a check gets it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.findings import Stop
from megafuse.learn.exercises.native import Native


@dataclass
class Work:
    """What is checked, on which device. `stage` is told what runs now, in case nothing returns."""

    exercise: Exercise
    path: Path
    device: str
    stage: Callable[[str], None] = lambda doing: None
    trail: Path | None = None  # where C++ notes which line it is at

    def python(self) -> dict[str, Any]:
        """Runs the file and returns its names."""
        self.stage("your file was run")
        text = self.path.read_bytes()
        module = ModuleType("exercise")  # not "__main__": what a learner tries out stays out
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module  # dataclasses look there
        exec(compile(text, str(self.path), "exec"), vars(module))
        self.stage("your functions were called")
        return vars(module)

    def function(self, name: str) -> Callable[..., Any]:
        """One function of the file; a Stop says so if it is gone."""
        found = self.python().get(name)
        if not callable(found):
            raise Stop(
                "complete",
                f"there is no function {name}()",
                f"The check calls `{name}`, so the file must define it.",
            )
        return found  # type: ignore[no-any-return]

    def native(self) -> Native:
        """The file's function on plain and on counted memory."""
        self.stage("your code was compiled and run")
        return Native(self.path, self.exercise.folder / "harness.cpp", self.trail)
