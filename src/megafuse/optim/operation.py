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
    " -> bool"
)
Columns = tuple[list[Tensor], ...]
Numbers = list[tuple[float, ...]]


def step(rule: str, columns: Columns, numbers: Numbers) -> bool:
    """Whether the host did it; if not, nothing was done."""
    if not torch._C._len_torch_dispatch_stack():
        return _launch(rule, columns, numbers)
    parameters, gradients, *kept = columns
    every_kept = [tensor for column in kept for tensor in column]
    every_number = [number for row in numbers for number in row]
    return bool(_operation()(rule, parameters, gradients, every_kept, every_number))


def _launch(rule: str, columns: Columns, numbers: Numbers) -> bool:
    host: Any = loader.load()
    return bool(host.optimizer_step(rule, _NUMBER_OF[rule], columns, numbers))


@functools.cache
def _operation() -> Any:
    def run(
        rule: str,
        parameters: list[Tensor],
        gradients: list[Tensor],
        kept: list[Tensor],
        numbers: list[float],
    ) -> bool:
        count = len(parameters)
        columns = (parameters, gradients, *_parts(kept, count))
        return _launch(rule, columns, [tuple(n) for n in _parts(numbers, len(numbers) // count)])

    made = torch.library.custom_op(
        "megafuse::optimizer_step", run, mutates_args=("parameters", "kept"), schema=_SCHEMA
    )
    made.register_fake(lambda *_: False)  # torch's own code does it with tensors without memory
    return made


def _parts(values: Sequence[Any], length: int) -> list[list[Any]]:
    return [list(values[at : at + length]) for at in range(0, len(values), length)]
