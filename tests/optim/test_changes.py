"""What may change between two steps: each is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import megafuse as mf
from optim.cases import NEEDS_COMPILER, PLAIN, of_torch, train

pytestmark = NEEDS_COMPILER


def other_memory(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[0].data = values[0].detach() + 0.5


def other_strides(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[1].data = values[1].detach().t().contiguous().t()


def other_dtype(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[0].data = values[0].detach().double()
    for key, kept in optimizer.state[values[0]].items():
        optimizer.state[values[0]][key] = kept.double() if key != "step" else kept


def other_state(optimizer: Any, values: list[nn.Parameter]) -> None:
    own = optimizer.state[values[0]]
    own.update({key: kept + 1 for key, kept in own.items()})


def other_dict(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.state[values[0]] = {key: t / 2 for key, t in optimizer.state[values[0]].items()}


def no_state(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.state.pop(values[0], None)


def other_order(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.param_groups[0]["params"].reverse()  # than that of the state


def other_numbers(optimizer: Any, values: list[nn.Parameter]) -> None:
    optimizer.param_groups[0].update(lr=0.3, weight_decay=0.2, maximize=True)


def new_group(optimizer: Any, values: list[nn.Parameter]) -> None:
    values.append(nn.Parameter(torch.linspace(0, 1, 5)))
    optimizer.add_param_group({"params": values[-1:], "lr": 0.2})


def other_parameter(optimizer: Any, values: list[nn.Parameter]) -> None:
    values[0] = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(6))


CHANGES = [
    *(other_memory, other_strides, other_dtype, other_state, other_dict, no_state),
    *(other_order, other_numbers, new_group, other_parameter),
]


@PLAIN
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_between_steps(change: Callable[..., None], name: str, how: dict[str, Any]) -> None:
    found = []
    for kind in (getattr(mf.optim, name), of_torch(name)):
        values = [nn.Parameter(torch.linspace(-1, 1, 6)), nn.Parameter(torch.ones(3, 4))]
        values.append(nn.Parameter(torch.full((2,), 0.5)))
        optimizer = kind(values, lr=0.1, **how)
        train(optimizer, values, 2)
        change(optimizer, values)
        train(optimizer, values, 2)
        found.append([t.detach() for v in values for t in (v, *optimizer.state[v].values())])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)  # float32's, for float64 too


@PLAIN
def test_gradients_change_between_steps(name: str, how: dict[str, Any]) -> None:
    """Their memory, their strides and whether they are there."""
    made: list[Callable[[Tensor], Tensor | None]] = [
        *(torch.sin, torch.cos, lambda t: None, lambda t: torch.sin(t).t().contiguous().t()),
        *(lambda t: torch.ones(()).expand_as(t), torch.sin, torch.cos),
    ]
    found = []
    for kind in (getattr(mf.optim, name), of_torch(name)):
        values = [nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(3)]
        optimizer = kind(values, lr=0.1, **how)
        for step in range(len(made)):
            for at, value in enumerate(values):
                value.grad = made[(step + at) % len(made)](value.detach())
            optimizer.step()
        found.append([t.detach() for v in values for t in (v, *optimizer.state[v].values())])
    torch.testing.assert_close(*found)
