"""SGD, plain or with momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from megafuse.optim.base import Group, OneLaunch, of_those, sign_of
from megafuse.optim.launch import Batch


class Moving(NamedTuple):
    """A group's columns."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    buffers: list[Tensor | None]  # None before the first step; empty without momentum


class SGD(OneLaunch[Moving], torch.optim.SGD):
    """torch.optim.SGD, its step one launch."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        torch.optim.SGD.__init__(
            self, params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize
        )

    def _gather(self, group: Group) -> Moving:
        columns = self._columns(group, *(("momentum_buffer",) if group["momentum"] else ()))
        if columns is not None:
            parameters, gradients, *buffers = columns
            return Moving(parameters, gradients, [*buffers[0]] if buffers else [])
        found = Moving([], [], [])
        self._init_group(group, *found)  # type: ignore[no-untyped-call]
        return found

    def _batch(self, group: Group, gathered: Moving) -> Batch:
        if not group["momentum"]:
            numbers = [_numbers(group, first=False)] * len(gathered.parameters)
            return Batch("sgd", gathered[:2], numbers)
        numbers = [_numbers(group, first=False)] * len(gathered.buffers)
        buffers: list[Any] = list(gathered.buffers)
        for row in [row for row, buffer in enumerate(buffers) if buffer is None]:
            parameter = gathered.parameters[row]
            buffers[row] = self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            numbers[row] = _numbers(group, first=True)
        return Batch("sgd_momentum", (gathered.parameters, gathered.gradients, buffers), numbers)

    def _finish(self, group: Group, gathered: Moving, left: set[int]) -> None:
        if not left:
            return
        buffers = gathered.buffers or [None] * len(gathered.parameters)
        rows = of_those(left, gathered.parameters, gathered.gradients, buffers)
        _by_torch(group, *rows)
        if group["momentum"]:
            for parameter, _, buffer in zip(*rows, strict=True):
                self.state[parameter]["momentum_buffer"] = buffer


def _numbers(group: Group, first: bool) -> tuple[float, ...]:
    """As kernels/optimizer.h's Sgd reads them. The first step's buffer is the gradient: nothing of
    what was there, and all of what comes."""
    momentum = float(group["momentum"])
    return (
        *(sign_of(group), group["weight_decay"]),
        *((0.0, 1.0) if first else (momentum, 1 - group["dampening"])),
        *(float(group["lr"]), float(group["nesterov"]), momentum),
    )


def _by_torch(
    group: Group, parameters: list[Tensor], gradients: list[Tensor], buffers: list[Tensor | None]
) -> None:
    sgd(
        parameters,
        gradients,
        buffers,
        has_sparse_grad=any(gradient.is_sparse for gradient in gradients),
        foreach=False,
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
    )
