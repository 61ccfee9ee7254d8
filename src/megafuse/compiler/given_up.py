"""Where Dynamo let Python go on, and no graph says that it ends there.

That is so where a break comes before the first operation (the models of transformers, when they are
first asked for all hidden states, add hooks under a lock), inside of a loop, and where AOTAutograd
finds that a graph cannot be traced. What is called from there may be graphs of its own. Dynamo
keeps a list of breaks, and one of the functions that it compiled or gave up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

_AFTER_ANOTHER = "step_unsupported"  # Dynamo tries a part of what it just failed to compile


@dataclass(frozen=True)
class GivenUp:
    """One place, and why."""

    reason: str
    file: str
    line: int
    of_model: bool  # it is in a file of the model's modules, or of what calls the model


class Compilations:
    """What Dynamo did since this was made."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        # In a torch that has them under other names, breaks without a graph are not listed.
        self._lists: tuple[Sequence[Any], ...] = (
            getattr(utils, "graph_break_reasons", ()),
            getattr(utils, "_compilation_metrics", ()),
        )
        self._last = [each[-1] if each else None for each in self._lists]

    def given_up(self, model: nn.Module, entry: str) -> list[GivenUp]:
        """Callers first. `entry` is the file that calls the model."""
        breaks, functions = map(_after, self._lists, self._last)
        breaks = [each for each in breaks if each.reason != _AFTER_ANOTHER]
        failed = [each for each in functions if each.fail_reason]
        if not breaks and not failed:
            return []
        files = {entry, *_files(model)}
        return [_break(each, files) for each in breaks] + [_failed(each, files) for each in failed]


def _after(known: Sequence[Any], last: Any) -> list[Any]:
    """What was added since `last` was. (Dynamo drops the oldest, or all of them.)"""
    every = list(known)
    places = [at for at, each in enumerate(every) if each is last]
    return every[places[-1] + 1 :] if places else every


def told(found: Iterable[GivenUp]) -> list[GivenUp]:
    """Each reason once, at the innermost place; none of what the model's own code has no part in,
    such as the inside of a function that Python runs."""
    every = list(found)
    reasons = dict.fromkeys(each.reason for each in every if each.of_model)
    return [[each for each in every if each.reason == reason][-1] for reason in reasons]


def short(reason: str) -> str:
    """Dynamo's words, without its hints and where it stood."""
    lines = [line.strip() for line in reason.strip().splitlines()]
    why = [line for line in lines if line.startswith("Explanation:")]
    return ": ".join([lines[0], *(line.removeprefix("Explanation:").strip() for line in why[:1])])


def _break(why: Any, files: set[str]) -> GivenUp:
    places = [(frame.filename, frame.lineno or 0) for frame in why.user_stack] or [("", 0)]
    return GivenUp(short(why.reason), *places[-1], any(file in files for file, _ in places))


def _failed(function: Any, files: set[str]) -> GivenUp:
    file = function.fail_user_frame_filename or function.co_filename
    line = function.fail_user_frame_lineno or function.co_firstlineno
    return GivenUp(short(function.fail_reason), file, line, function.co_filename in files)


def _files(model: nn.Module) -> set[str]:
    modules = {sys.modules.get(type(module).__module__) for module in model.modules()}
    return {getattr(module, "__file__", None) or "" for module in modules}
