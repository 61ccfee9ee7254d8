"""What a check found: one line each, and where something is wrong, the sentence that teaches."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """A timed run, as a roofline shows it."""

    device: str
    operations: float
    bytes_moved: float  # as it moves them, not the least
    seconds: float
    copy: float = 0.0  # bytes a second, of a copy that was timed beside it
    threads: int = 0  # 0: as many as torch has; the copy had as many

    @property
    def sound(self) -> bool:
        """Whether it can be drawn: progress.json is a file that anyone may have changed."""
        numbers = (self.operations, self.bytes_moved, self.seconds, 1 + self.copy)
        return all(isinstance(n, int | float) and 0 < n < math.inf for n in numbers)


@dataclass(frozen=True)
class Finding:
    """`ok` is None for what is only told. `says` is a paragraph: why it matters, what to do.

    `drawn` is a picture of text. `number` and `unit` are what the learner wants to make smaller:
    the first that was found and the best are kept. So are those of `run`.
    """

    what: str
    ok: bool | None
    found: str
    says: str = ""
    drawn: str = ""
    number: float | None = None
    unit: str = ""
    run: Run | None = None


class Stop(Exception):
    """Raised by a check with its last finding, where looking further makes no sense."""

    def __init__(self, what: str, found: str, says: str = "") -> None:
        super().__init__(found)
        self.finding = Finding(what, False, found, says)


class Refused(Exception):
    """The command cannot do what was asked; the message says why."""


def passed(findings: list[Finding]) -> bool:
    """Whether something was checked and nothing was wrong."""
    checked = [finding.ok for finding in findings if finding.ok is not None]
    return bool(checked) and all(checked)
