"""optimizer in a loop, tried: copies of the parameters, stepped by a fused one as well."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from megafuse.bench import accuracy
from megafuse.bench.timing import compare, speedup
from megafuse.diagnose.finding import Trial
from megafuse.diagnose.keep import reachable
from megafuse.diagnose.subject import Subject

WHAT = "fused=True"
_BUDGET = 0.8


def tried(subject: Subject) -> Trial | None:
    """None where it is not one optimizer that is known, or it cannot be fused."""
    found = reachable(subject.function, (subject.args, subject.kwargs))
    optimizers = [thing for thing in found if isinstance(thing, Optimizer)]
    if len(optimizers) != 1:
        return None
    (optimizer,) = optimizers
    if "fused" not in inspect.signature(type(optimizer).__init__).parameters:
        return None
    try:
        plain, fused = _copy(optimizer, None), _copy(optimizer, True)
        exact = _copy(optimizer, None, torch.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        return Trial(WHAT, 0.0, 0.0, 0.0, 0.0, f"{WHAT}: {error}", part="operations")
    for each in (plain, fused, exact):
        each.step()
    wrong = accuracy.wrong(_parameters(fused), _parameters(plain), _parameters(exact))
    if wrong:
        return Trial(WHAT, 0.0, 0.0, 0.0, 0.0, f"{WHAT}: {wrong}", part="operations")
    taken = compare(
        {"before": lambda i: plain.step(), "after": lambda i: fused.step()},
        device=subject.device,
        clock="wall",
        budget=_BUDGET,
    )
    ratio = speedup(taken["before"], taken["after"])
    before, after = taken["before"].median, taken["after"].median
    return Trial(WHAT, before, after, ratio.low, ratio.high, part="operations")


def _copy(optimizer: Optimizer, fused: bool | None, dtype: torch.dtype | None = None) -> Optimizer:
    """A new optimizer of the same kind and settings, over copies."""
    names = inspect.signature(type(optimizer).__init__).parameters
    settings = {k: v for k, v in optimizer.defaults.items() if k in names}
    if fused:
        settings |= {"fused": True, "foreach": False}
    groups = []
    for group in optimizer.param_groups:
        own: dict[str, Any] = {k: v for k, v in group.items() if k in settings and k != "params"}
        if fused:
            own |= {"fused": True, "foreach": False}
        groups.append(own | {"params": [_leaf(p, dtype) for p in group["params"]]})
    return type(optimizer)(groups, **settings)


def _leaf(parameter: Tensor, dtype: torch.dtype | None) -> Tensor:
    """With its gradient; where it has none now, with some."""
    copy = parameter.detach().clone().to(dtype or parameter.dtype).requires_grad_()
    grad = parameter.grad
    drawn = torch.full_like(parameter, 1e-3) if grad is None else grad
    copy.grad = drawn.detach().clone().to(copy.dtype)
    return copy


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p.detach() for group in optimizer.param_groups for p in group["params"]]
