"""Calls to test: every op with every choice of its arguments, and the arguments to call it with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megafuse import OPS
from megafuse.ops import Op
from megafuse.registry.sample import Draw

Args = list[Any]


@dataclass(frozen=True)
class Case:
    """One op with its string and flag arguments chosen."""

    name: str
    choices: tuple[tuple[str, Any], ...] = ()

    @property
    def op(self) -> Op:
        return OPS[self.name]

    @property
    def draws(self) -> bool:
        """Whether the result is random, so that the reference cannot be compared with."""
        return self.op.random and ("training", False) not in self.choices

    def args(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        requires_grad: bool = False,
    ) -> Args:
        made = list(self.op.sample(Draw(shape, dtype, device, requires_grad)))
        for name, value in self.choices:
            made[self.op.position(name)] = value
        return made

    def __str__(self) -> str:
        return "-".join([self.name, *(str(value) for _, value in self.choices)])


def _cases(op: Op) -> list[Case]:
    values = {a.name: a.choices or (True, False) for a in op.arguments if a.kind in _CHOSEN}
    return [
        Case(op.name, tuple(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]


_CHOSEN = ("choice", "flag")
ALL = [case for each in OPS.values() for case in _cases(each)]
# With a reference to compare with.
CASES = [case for case in ALL if not case.draws]
DIFFERENTIABLE = [case for case in CASES if case.op.differentiable]


def default(op: Op) -> Case:
    """The op's first case that has a reference to compare with."""
    return next(case for case in CASES if case.name == op.name)


# One case for each op: for what does not depend on the formula.
ONE_EACH = [default(op) for op in OPS.values()]
ONE_EACH_DIFFERENTIABLE = [case for case in ONE_EACH if case.op.differentiable]


def full_args(case: Case, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> Args:
    """Arguments all of whose tensors have the whole shape, and no number where a tensor may be."""
    made = []
    for argument, value in zip(case.op.arguments, case.args(shape, dtype, device), strict=True):
        if argument.is_tensor and not isinstance(value, Tensor):
            value = torch.randn(shape, device=device).to(dtype)
        made.append(value.expand(shape).contiguous() if isinstance(value, Tensor) else value)
    return made


def tensors(args: Args) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]


def wanting_grad(case: Case, args: Args) -> Args:
    """The same arguments as fresh leaves that want their gradient, where they can have one."""
    return [
        a.detach().requires_grad_(n.name in case.op.grads) if isinstance(a, Tensor) else a
        for n, a in zip(case.op.arguments, args, strict=True)
    ]


def leaves(args: Args) -> list[Tensor]:
    return [t for t in tensors(args) if t.requires_grad]
