"""Who takes part: what each does to a model before its first step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

SUBJECT = "optimize"


class Skipped(Exception):
    """The contender does not take part here; the message says why."""


@dataclass(frozen=True)
class Contender:
    """`pace` groups those that take about as long to prepare: the slowest holds up the others.

    `graphs`: it replays CUDA graphs, which allocate when they are made and not when they run.
    """

    name: str
    about: str
    apply: Callable[[nn.Module], object]
    pace: int
    graphs: bool = False
    marks_steps: bool = False  # torch wants to be told where a step begins

    @property
    def compiles(self) -> bool:
        """Whether it is one of torch.compile's modes."""
        return self.pace > 0


def _compiled(**how: Any) -> Callable[[nn.Module], object]:
    return lambda model: model.compile(**how)


def _optimized(model: nn.Module) -> object:
    from megafuse.compiler.optimize import optimize

    return optimize(model)


def _optimized_with_graphs(model: nn.Module) -> object:
    from megafuse.compiler.optimize import optimize

    call: Any = optimize  # of a version that has no graphs, perhaps
    if "graphs" not in inspect.signature(call).parameters:
        raise Skipped("this megafuse's optimize takes no graphs=True")
    return call(model, graphs=True)


CONTENDERS = {
    c.name: c
    for c in (
        Contender(SUBJECT, "megafuse.optimize(model)", _optimized, 0),
        Contender(
            "optimize-graphs",
            "megafuse.optimize(model, graphs=True)",
            _optimized_with_graphs,
            0,
            graphs=True,
        ),
        Contender("eager", "PyTorch, one operation after the other", lambda model: None, 0),
        Contender("compile", "model.compile()", _compiled(), 1),
        Contender(
            "reduce-overhead",
            'model.compile(mode="reduce-overhead")',
            _compiled(mode="reduce-overhead"),
            1,
            graphs=True,
            marks_steps=True,
        ),
        Contender(
            "max-autotune",
            'model.compile(mode="max-autotune")',
            _compiled(mode="max-autotune"),
            2,
            graphs=True,
            marks_steps=True,
        ),
    )
}


def refused(name: str, device: str) -> str:
    """Why a contender is left out on this device; "" if it is not."""
    if device == "cuda":
        return ""
    return {
        "optimize-graphs": "CUDA graphs need CUDA",
        "reduce-overhead": "CUDA graphs are all that sets it apart from compile, and need CUDA",
    }.get(name, "")
