"""Loops over slices of one tensor: each slice is an operand, and a launch takes so many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from selection import often
from torch import Tensor

from graph.test_partition import check
from megafuse.graph import cost
from megafuse.graph.capture import capture
from megafuse.graph.clean import clean
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.partition import partition
from megafuse.graph.plan import Plan

STEPS = 30


def last(x: Tensor) -> Tensor:
    state = x[:, 0]
    for step in range(1, STEPS):
        state = torch.sigmoid(state) * 0.5 + x[:, step]
    return state


def every(x: Tensor) -> Tensor:
    """Another kernel reads each state, which is known only when all are in kernels."""
    state, states = x[:, 0], []
    for step in range(1, STEPS):
        state = torch.sigmoid(state) * 0.5 + x[:, step]
        states.append(state)
    return torch.stack(states, 1)


def sum_of_every(x: Tensor) -> Tensor:
    state, sums = x[:, 0], []
    for step in range(1, STEPS):
        state = torch.sigmoid(state) * 0.5 + x[:, step]
        sums.append(state.sum(-1))
    return torch.stack(sums, 1)


def total(x: Tensor) -> Tensor:
    """Of nothing but light additions, which readers compute themselves."""
    found = x[:, 0]
    for step in range(1, STEPS):
        found = found + x[:, step]
    return found


def softmax_of_total(x: Tensor) -> Tensor:
    return total(x).softmax(-1)


def turned_around(x: Tensor) -> Tensor:
    return torch.stack([torch.exp(x[:, STEPS - 1 - step]) for step in range(STEPS)], 1)


FUNCTIONS = (last, every, sum_of_every, total, softmax_of_total, turned_around)


def most(plan: Plan) -> int:
    """The operands of the kernel that has the most."""
    return max(
        len(kernel.inputs) + len(kernel.outputs) + len(kernel.row_outputs) + len(kernel.sums)
        for kernel in plan.kernels
    )


@pytest.mark.parametrize(
    "function", [pytest.param(f, marks=() if f is last else pytest.mark.slow) for f in FUNCTIONS]
)
def test_a_launch_takes_every_kernel(function: Callable[..., Any]) -> None:
    """Kernels are compared with eager as they are interpreted."""
    plan = check(function, torch.randn(2, STEPS, 3))
    assert most(plan) <= cost.MAX_OPERANDS
    assert len(plan.kernels) <= 10


@pytest.mark.slow
@pytest.mark.parametrize("function", often(FUNCTIONS, [sum_of_every]))
def test_and_of_its_backward(function: Callable[..., Any]) -> None:
    x = torch.randn(2, STEPS, 3, requires_grad=True)
    captured = capture(function, (x,), decompositions=decompositions())
    plan = partition(clean(lower(captured, "backward")), function.__name__)
    assert most(plan) <= cost.MAX_OPERANDS
