"""A whole module, tried: a copy of it through `megafuse.optimize`, against the module itself."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from megafuse.bench import accuracy
from megafuse.bench.timing import compare, speedup
from megafuse.compiler import optimize
from megafuse.diagnose.finding import Trial
from megafuse.diagnose.subject import Subject

WHAT = "megafuse.optimize"
HELPS = ("fusable", "launch-bound", "strict float32 product", "attention written out")
_BUDGET = 1.5


def tried(subject: Subject) -> Trial | None:
    """None for what is no module, or is compiled already. It takes as long as compiling does."""
    model = subject.function
    if not isinstance(model, nn.Module) or subject.compiled:
        return None
    try:
        plain, ours = (_with(subject, copy.deepcopy(model)) for _ in range(2))
        optimize(ours.function)  # type: ignore[type-var]
        with torch.random.fork_rng(), torch.no_grad():
            wrong = _wrong(subject, plain, ours)
        for each in (plain, ours):
            each.call()
    except Exception as error:  # anything can be in a model
        told = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        return Trial(WHAT, 0.0, 0.0, 0.0, 0.0, f"{WHAT}: {told}")
    if wrong:
        return Trial(WHAT, 0.0, 0.0, 0.0, 0.0, f"{WHAT}: {wrong}")
    taken = compare(
        {"before": lambda i: plain.call(), "after": lambda i: ours.call()},
        device=subject.device,
        clock="wall",
        budget=_BUDGET,
    )
    ratio = speedup(taken["before"], taken["after"])
    return Trial(
        WHAT, taken["before"].median, taken["after"].median, ratio.low, ratio.high
    )  # of the whole call


def _with(subject: Subject, model: nn.Module) -> Subject:
    leaves: list[torch.Tensor] = [p for p in model.parameters() if p.requires_grad]
    return replace(subject, function=model, _leaves=leaves, _gradients={})


def _wrong(subject: Subject, plain: Subject, ours: Subject) -> str | None:
    """Of the outputs, in the mode that the model is in; with dropout they are compared as drawn."""
    outs = []
    for each in (plain, ours):
        outs.append(accuracy.leaves(each.function(*each.args, **each.kwargs)))
    random = bool(subject.function.training)  # type: ignore[attr-defined]
    exact = None
    if not random:
        wide = copy.deepcopy(plain.function).double()  # type: ignore[attr-defined]
        exact = accuracy.in_float64(wide, subject.args) if not subject.kwargs else None
    return accuracy.wrong(outs[1], outs[0], exact, random)
