"""torch.compile within a share of the time.

Compiling takes seconds, on some layers tens of them. A group of cases that differ in shape only has
one compilation with dynamic shapes; a case that needs a careful comparison another one with its own
shape, which is what the suites compare with. Both only while less than `SHARE` of the time so far
was spent on compiling, and where as long as the last compilation of this op took is left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from megafuse.bench.contenders import Function, compiled
from megafuse.bench.honesty import told
from megafuse.bench.job import Job
from megafuse.bench.sweep.case import Case
from megafuse.bench.sweep.limits import LOST

SHARE = 0.4
_AHEAD = 0.1  # of all the time: may be spent before the share of what has passed allows it


class Compiler:
    """Compiles while there is time, and remembers."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.spent = 0.0
        self.started = time.perf_counter()
        self.failed: dict[str, str] = {}  # op and mode → why
        self._groups: dict[tuple[object, ...], Function] = {}
        self._took: dict[tuple[str, str], float] = {}

    def of_group(self, case: Case, job: Job) -> Function | None:
        """With dynamic shapes; None where there is no time for it."""
        if case.group not in self._groups:
            if not self._affordable(case):
                return None
            self._groups[case.group] = compiled(job.reference, dynamic=True)
        return self._groups[case.group]

    def of_shape(self, case: Case, job: Job) -> Function | None:
        """For this very shape; None where there is no time for it."""
        return compiled(job.reference) if self._affordable(case) else None

    def runs(self, case: Case, step: Function, args: Sequence[Any]) -> bool:
        """Calls it, which compiles it where need be, and counts the time; False: it failed."""
        begun = time.perf_counter()
        try:
            step(*args)
        except LOST:
            raise
        except Exception as error:  # a compiler can fail in any way
            self.failed[f"{case.op}, {case.mode}"] = told(error)
            return False
        finally:
            took = time.perf_counter() - begun
            self.spent += took
            key = (case.op, case.mode)
            self._took[key] = max(took, self._took.get(key, 0.0))
        return True

    def _affordable(self, case: Case) -> bool:
        passed = time.perf_counter() - self.started
        allowed = min(SHARE * self.seconds, SHARE * passed + _AHEAD * self.seconds)
        expected = self._took.get((case.op, case.mode), 0.0)
        failed = f"{case.op}, {case.mode}" in self.failed
        return not failed and self.spent + expected < allowed
