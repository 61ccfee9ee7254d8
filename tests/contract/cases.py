"""Calls to test: every op with every choice of its arguments, and the arguments to call it with.

Shapes that tests give are those of the first tensor. Ops that are not pointwise want a certain
number of dimensions: theirs are the nearest such shape (`Case.shape`).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable
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
    """One op with its string and flag arguments chosen, and its optional ones given or not."""

    name: str
    choices: tuple[tuple[str, Any], ...] = ()
    absent: bool = False

    @property
    def op(self) -> Op:
        return OPS[self.name]

    @property
    def is_default(self) -> bool:
        """Whether it is the op's first case that has a reference to compare with."""
        return self == default(self.op)

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the result is random, so that the reference cannot be compared with."""
        return self.op.draws(self.named(self.args((2, 2))))

    def named(self, args: Args) -> dict[str, Any]:
        return {a.name: v for a, v in zip(self.op.arguments, args, strict=True)}

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """This shape with leading dimensions added or merged, as many as the op wants."""
        rule = self.op.arguments[0].shape
        least = max(len(re.findall("[A-Z]", rule)), 2 * (("causal", True) in self.choices))
        shape = (1,) * (least - len(shape)) + shape
        if rule and not rule.startswith("..."):
            merged = len(shape) - least + 1
            shape = (math.prod(shape[:merged]), *shape[merged:])
        return shape

    def args(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        requires_grad: bool = False,
        features: int | None = None,
    ) -> Args:
        draw = Draw(
            self.shape(shape), dtype, device, requires_grad, everything=True, features=features
        )
        made = list(self.op.sample(draw))
        if self.op.random and not self.op.pointwise:
            made[self.op.position("p")] = 0.0
        for name, value in self.choices:
            made[self.op.position(name)] = value
        if self.absent:
            made = [None if a.optional else v for a, v in zip(self.op.arguments, made, strict=True)]
        return made

    def __str__(self) -> str:
        chosen = (str(value) for _, value in self.choices)
        return "-".join([self.name, *chosen, *(["absent"] if self.absent else [])])


def _cases(op: Op) -> list[Case]:
    """Every choice with all optional arguments given, the first choice with none of them."""
    values = {a.name: a.choices or (False, True) for a in op.arguments if _is_chosen(op, a)}
    found = [
        Case(op.name, tuple(zip(values, chosen, strict=True)))
        for chosen in itertools.product(*values.values())
    ]
    if any(a.optional for a in op.arguments):
        found.append(Case(op.name, found[0].choices, absent=True))
    return found


def _is_chosen(op: Op, argument: Any) -> bool:
    # `Case.args` has p = 0 for them, where training makes no difference.
    idle = argument.name == "training" and not op.pointwise
    return argument.kind in ("choice", "flag") and not idle


def shaped(cases: Iterable[Case]) -> list[Case]:
    """Those whose results depend on whole rows: tensors do not broadcast, dtypes not promote."""
    return [case for case in cases if not case.op.pointwise]


def pointwise(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.op.pointwise]


def one_pass(cases: Iterable[Case]) -> list[Case]:
    """Those that are one kernel of ours: pointwise and row-wise."""
    return [case for case in cases if case.op.family != "composite"]


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
    """Arguments all of whose tensors have the whole shape, and no number where a tensor may be.

    Of ops that are not pointwise: all arguments.
    """
    drawn = case.args(shape, dtype, device)
    if not case.op.pointwise:
        return drawn
    made = []
    for argument, value in zip(case.op.arguments, drawn, strict=True):
        if argument.is_tensor and not isinstance(value, Tensor):
            value = torch.randn(shape, device=device).to(dtype)
        made.append(value.expand(shape).contiguous() if isinstance(value, Tensor) else value)
    return made


def tensors(args: Args) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]


def tensor_places(case: Case, args: Args) -> list[int]:
    return [i for i, a in enumerate(args) if isinstance(a, Tensor)]


def wanting_grad(case: Case, args: Args) -> Args:
    """The same arguments as fresh leaves that want their gradient, where they can have one."""
    return [
        a.detach().requires_grad_(n.name in case.op.autograd.grads) if isinstance(a, Tensor) else a
        for n, a in zip(case.op.arguments, args, strict=True)
    ]


def leaves(args: Args) -> list[Tensor]:
    return [t for t in tensors(args) if t.requires_grad]


# ---- results: one tensor or several


def listed(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def total(result: Any) -> Tensor:
    """One number that every output has a part in."""
    return sum(t.sum() for t in listed(result))  # type: ignore[return-value]


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(listed(a), listed(b), strict=True))


def close(case: Case, got: Any, expected: Any) -> None:
    """As near as torch's own results on different machines; rules.py has the exact rule.

    Of matrix products the terms are added in another order.
    """
    near = {} if case.op.family != "composite" else {"rtol": 1e-4, "atol": 1e-4}
    for a, b in zip(listed(got), listed(expected), strict=True):
        torch.testing.assert_close(a, b, **({} if a.dtype == torch.float64 else near))
