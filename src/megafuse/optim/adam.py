"""Adam and AdamW."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from megafuse.optim.base import Group, OneLaunch, of_those, sign_of
from megafuse.optim.launch import Batch
from megafuse.optim.operation import Columns, count, counts


class Moments(NamedTuple):
    """A group's columns."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    maxima: list[Tensor]  # none without amsgrad
    steps: list[Tensor]  # how many there were


class _OfAdam(OneLaunch[Moments], torch.optim.Adam):
    def _gather(self, group: Group) -> Moments:
        maxima = ("max_exp_avg_sq",) if group["amsgrad"] else ()
        columns = self._columns(group, "exp_avg", "exp_avg_sq", *maxima, "step")
        if columns is not None:
            parameters, gradients, means, squares, *more, steps = columns
            return Moments(parameters, gradients, means, squares, more[0] if more else [], steps)
        found = Moments([], [], [], [], [], [])
        self._init_group(group, *found)  # type: ignore[no-untyped-call]
        return found

    def _batch(self, group: Group, gathered: Moments) -> Batch:
        rule = "adamw" if group["decoupled_weight_decay"] else "adam"
        columns: Columns = gathered[:4]
        if group["amsgrad"]:
            rule, columns = f"{rule}_maxima", gathered[:5]
        taken = counts(gathered.steps)
        of_count = {count: _numbers(group, count + 1) for count in set(taken)}  # most are alike
        return Batch(rule, columns, [of_count[count] for count in taken])

    def _finish(self, group: Group, gathered: Moments, left: set[int]) -> None:
        mine, theirs = gathered.steps, Moments([], [], [], [], [], [])
        if left:
            maxima = gathered.maxima if group["amsgrad"] else gathered.means  # of equal length
            theirs = Moments(*of_those(left, *gathered._replace(maxima=maxima)))
            taken = set(map(id, theirs.steps))
            mine = [step for step in gathered.steps if id(step) not in taken]
        count(mine)
        if theirs.parameters:
            _by_torch(group, theirs)


def _numbers(group: Group, count: float) -> tuple[float, ...]:
    """As kernels/optimizer.h's Adam reads them, in Python's double precision."""
    rate, (one, two) = float(group["lr"]), map(float, group["betas"])
    decay = group["weight_decay"]
    if group["decoupled_weight_decay"]:
        decay = 1 - rate * decay  # what is kept
    correction = (1 - two**count) ** -0.5
    return (
        *(sign_of(group), decay, 1 - one, two, 1 - two),
        *(rate / (1 - one**count), correction, group["eps"]),
    )


def _by_torch(group: Group, rows: Moments) -> None:
    adam(
        *rows._replace(maxima=rows.maxima if group["amsgrad"] else []),
        foreach=False,
        amsgrad=group["amsgrad"],
        has_complex=any(map(torch.is_complex, rows.parameters)),
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
        decoupled_weight_decay=group["decoupled_weight_decay"],
    )


class Adam(_OfAdam):
    """torch.optim.Adam, its step one launch."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class AdamW(_OfAdam, torch.optim.AdamW):
    """torch.optim.AdamW, its step one launch."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        torch.optim.AdamW.__init__(
            self, params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize
        )
