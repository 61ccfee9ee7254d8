"""What can go wrong, by name."""

from __future__ import annotations

from typing import Any


class Unsupported(ValueError):
    """A model that the schedule cannot express; `field` names the part of its config."""

    def __init__(self, field: str, found: Any, expected: str) -> None:
        super().__init__(f"{field} is {found!r}: megafuse.decode knows {expected}")
        self.field = field


class CacheFull(RuntimeError):
    """The text would be longer than `max_length`, for which the cache was made."""


class LostWait(RuntimeError):
    """A thread or block waited longer than the watchdog allows: the step was given up."""
