"""A sum of which one term of each row is not 0 is that term, and nobody goes through the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graph.run_plan import run_plan
from megafuse.graph.capture import capture
from megafuse.graph.clean import clean
from megafuse.graph.cost import Device
from megafuse.graph.ir import Graph, Reduce
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.partition import partition
from megafuse.graph.patterns import matched


def columns(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1])


def plain(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, x, 0.0).sum(-1)


def other_way_round(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(i == columns(x), x.exp() * 2, 0.0).sum(-1, keepdim=True)


def with_conditions(x: Tensor, i: Tensor, c: Tensor) -> Tensor:
    """One is of the row, another of each element."""
    return torch.where((columns(x) == i) & (i != 3) & (x > c), x, 0.0).sum(-1)


def steady(x: Tensor, i: Tensor, c: Tensor) -> Tensor:
    return torch.where(columns(x) == i, c, 0.0).sum(-1)


def of_its_column(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, columns(x) * x, 0.0).sum(-1)


def less_a_row(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    """What is picked is made with a reduction of the same row."""
    return torch.where(columns(x) == i, x - x.amax(-1, keepdim=True), 0.0).sum(-1)


def narrow(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, x.bfloat16(), 0.0).float().sum(-1)


def integers(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, (x * 9).long(), 0).sum(-1)


def of_the_first_dimension(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x)[:, None] == i.t(), x.t(), 0.0).sum(0)


def shifted(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    """Of another element of the row: a view that begins elsewhere is not looked through."""
    return torch.where(columns(x) == i, x.roll(1, -1), 0.0).sum(-1)


def several(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) <= i, x, 0.0).sum(-1)


def not_zero(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, x, 0.5).sum(-1)


def largest(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, x, 0.0).amax(-1)


def of_all(x: Tensor, i: Tensor, _: Tensor) -> Tensor:
    return torch.where(columns(x) == i, x, 0.0).sum()


PICKED = [
    *(plain, other_way_round, with_conditions, steady, of_its_column, narrow, integers),
    of_the_first_dimension,
]
LEFT = [shifted, several, not_zero, largest, of_all]


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    """With indices that are no column, and what must not be touched by a product with 0."""
    x = torch.randn(9, 7)
    x[2], x[3, 1] = torch.inf, torch.nan
    return x, torch.tensor([[0], [6], [2], [3], [7], [-1], [-7], [1 << 40], [3]]), torch.randn(9, 1)


def found(function: Callable[..., Any], *args: Any) -> Graph:
    with torch.no_grad():
        captured = capture(function, args, decompositions=decompositions())
    return matched(clean(lower(captured)), "cpu", rounds=False)


def sums(graph: Graph) -> int:
    return sum(isinstance(value, Reduce) and value.kind == "sum" for value in graph.values)


@pytest.mark.parametrize("function", [*PICKED, less_a_row], ids=lambda f: f.__name__)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_term_is_read_where_it_is(function: Callable[..., Any], device: Device) -> None:
    args = arguments()
    graph = found(function, *args)
    assert sums(graph) == 0
    (got,) = run_plan(partition(graph, device=device), graph, args)
    torch.testing.assert_close(got, function(*args), equal_nan=True)


@pytest.mark.parametrize("function", LEFT, ids=lambda f: f.__name__)
def test_other_sums_are_sums(function: Callable[..., Any]) -> None:
    args = arguments()
    graph = found(function, *args)
    assert any(isinstance(value, Reduce) for value in graph.values)
    (got,) = run_plan(partition(graph), graph, args)
    torch.testing.assert_close(got, function(*args), equal_nan=True)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target, reduction="none", ignore_index=1)


def test_a_cross_entropy_has_two_reductions() -> None:
    """The largest logit of a row, and the sum of what is relative to it."""
    x, target = torch.randn(5, 3001, dtype=torch.bfloat16), torch.tensor([0, 3000, 1, 7, 1])
    graph = found(cross_entropy, x, target)
    assert [v.kind for v in graph.values if isinstance(v, Reduce)] == ["amax", "sum"]


def test_on_a_gpu_they_are_one_step() -> None:
    x, target = torch.randn(5, 3001, dtype=torch.bfloat16), torch.tensor([0, 3000, 1, 7, 1])
    with torch.no_grad():
        captured = capture(cross_entropy, (x, target), decompositions=decompositions())
    graph = matched(clean(lower(captured)), "cuda", rounds=False)
    plan = partition(graph, device="cuda")
    kinds = [r.kind for k in plan.kernels for r in k.body.reductions]
    assert kinds == ["amax", "expsum"]
    (got,) = run_plan(plan, graph, [x, target])
    torch.testing.assert_close(got, cross_entropy(x, target))


def test_a_softmax_that_is_written_has_two_steps() -> None:
    """Each element's exponential is needed again: on chip, from the second step."""
    graph = found(lambda x: x.softmax(-1), torch.randn(5, 301))
    plan = partition(graph, device="cuda")
    assert [r.kind for k in plan.kernels for r in k.body.reductions] == ["amax", "sum"]
