"""Lion: the sign of a moving mean (https://arxiv.org/abs/2302.06675)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from megafuse.optim.base import Group, OneLaunch, of_those, sign_of
from megafuse.optim.launch import Batch


class Means(NamedTuple):
    """A group's columns."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    means: list[Tensor]


class Lion(OneLaunch[Means]):
    """Every element moves by the learning rate, up or down. Rates are a tenth to a third of
    AdamW's, and weight decay is as many times larger."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ) -> None:
        if not float(lr) >= 0:
            raise ValueError(f"lr must be 0 or more, not {float(lr)}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), not {betas}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more, not {weight_decay}")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    def _gather(self, group: Group) -> Means:
        columns = self._columns(group, "exp_avg")
        if columns is not None:
            return Means(*columns)
        found = Means([], [], [])
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                raise RuntimeError("Lion takes no sparse gradients")
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
            for column, tensor in zip(
                found, (parameter, parameter.grad, state["exp_avg"]), strict=True
            ):
                column.append(tensor)
        return found

    def _batch(self, group: Group, gathered: Means) -> Batch:
        one, two = group["betas"]
        rate = float(group["lr"])
        numbers = (
            *(sign_of(group), 1 - rate * group["weight_decay"]),
            *(one, 1 - one, two, 1 - two, rate),
        )
        return Batch("lion", gathered, [numbers] * len(gathered.parameters))

    def _finish(self, group: Group, gathered: Means, left: set[int]) -> None:
        for parameter, gradient, mean in zip(*of_those(left, *gathered), strict=True):
            _by_torch(group, parameter, gradient, mean)


def _by_torch(group: Group, parameter: Tensor, gradient: Tensor, mean: Tensor) -> None:
    one, two = group["betas"]
    gradient = sign_of(group) * gradient
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.sub_(group["lr"] * torch.sign(one * mean + (1 - one) * gradient))
    mean.mul_(two).add_(gradient, alpha=1 - two)
