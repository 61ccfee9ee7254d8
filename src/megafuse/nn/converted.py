"""What convert answers: the modules that were replaced, those that were left, and why."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

WIDTH = 80


class Converted(dict[str, str]):
    """{path: the name of the module of ours that it computes as}, and what is printed of it.

    `left` is {path: the reason} for the modules that looked like one of ours and are none, and
    `was` {path: the name of its class} for both.
    """

    left: dict[str, str]
    was: dict[str, str]

    def __init__(self) -> None:
        super().__init__()
        self.left, self.was = {}, {}

    def __str__(self) -> str:
        lines = []
        for kind, was, paths in _grouped(self, self.was):
            lines += _wrapped(f"{len(paths)} {was} -> {kind} at {_short(paths)}")
        if not lines:
            lines = ["nothing replaced"]
        for reason, was, paths in _grouped(self.left, self.was):
            lines += _wrapped(f"{len(paths)} {was} left at {_short(paths)}: {reason}")
        return "\n".join(lines)


def _grouped(what: dict[str, str], was: dict[str, str]) -> list[tuple[str, str, list[str]]]:
    """(value, class, the paths that have both), in the order of the model."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path, value in what.items():
        groups.setdefault((value, was[path]), []).append(path or "the top")
    return [(value, name, paths) for (value, name), paths in groups.items()]


def _short(paths: Iterable[str]) -> str:
    """layers.0.mlp, layers.1.mlp: layers.*.mlp."""
    return ", ".join(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", path) for path in paths))


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
