"""The launch as an operation of PyTorch's, for modes that watch every operation (profilers of
memory, `megafuse diagnose`): they see what is read and what is written to.

A plain step does not go through here: the dispatcher would take as long for its lists as the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from megafuse.runtime import loader, optimizers

_NUMBER_OF = {rule: number for number, rule in enumerate(optimizers.RULES)}
_SCHEMA = (
    "(str rule, Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] kept, float[] numbers)"
    " -> int[]"
)
_PLAIN = {Tensor, torch.nn.Parameter}
Columns = tuple[list[Tensor], ...]
Numbers = list[tuple[float, ...]]


def step(rule: str, columns: Columns, numbers: Numbers) -> list[int]:
    """The rows that the host cannot do; if there is one, it did nothing."""
    if not _watched():
        return _launch(rule, columns, numbers)
    rows = enumerate(zip(*columns, strict=True))
    unfit = [row for row, tensors in rows if not _PLAIN.issuperset(map(type, tensors))]
    parameters, gradients, *kept = columns
    if unfit or not parameters:  # the operation is not for shards of a DTensor
        return unfit
    every_kept = [tensor for column in kept for tensor in column]
    every_number = [number for row in numbers for number in row]
    return list(_operation()(rule, parameters, gradients, every_kept, every_number))


def counts(steps: list[Tensor]) -> list[float]:
    """How many steps were taken."""
    known = _counted(steps, 0)
    return [step.item() for step in steps] if known is None else known


def count(steps: list[Tensor]) -> None:
    """One more was taken."""
    if steps and _counted(steps, 1) is None:
        torch._foreach_add_(steps, 1)


def _counted(steps: list[Tensor], more: int) -> list[float] | None:
    host: Any = loader.load()
    return None if host is None or _watched() else host.optimizer_counts(steps, more)


def _watched() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0


def _launch(rule: str, columns: Columns, numbers: Numbers) -> list[int]:
    host: Any = loader.load()
    unfit: list[int] = host.optimizer_step(rule, _NUMBER_OF[rule], columns, numbers)
    return unfit


@functools.cache
def _operation() -> Any:
    def run(
        rule: str,
        parameters: list[Tensor],
        gradients: list[Tensor],
        kept: list[Tensor],
        numbers: list[float],
    ) -> list[int]:
        count = len(parameters)
        columns = (parameters, gradients, *_parts(kept, count))
        return _launch(rule, columns, [tuple(n) for n in _parts(numbers, len(numbers) // count)])

    made = torch.library.custom_op(
        "megafuse::optimizer_step", run, mutates_args=("parameters", "kept"), schema=_SCHEMA
    )
    # Torch's own code does it with tensors without memory.
    made.register_fake(lambda rule, parameters, *_: list(range(len(parameters))))
    return made


def _parts(values: Sequence[Any], length: int) -> list[list[Any]]:
    return [list(values[at : at + length]) for at in range(0, len(values), length)]
