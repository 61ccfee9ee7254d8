"""Rows of whole 16 bytes for products: the factors that kernels compute are padded, and once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from graph.run_plan import run_plan
from megafuse.graph.capture import capture
from megafuse.graph.clean import clean
from megafuse.graph.ir import Extern, Gather, Graph
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.partition import partition
from megafuse.graph.patterns import matched
from megafuse.graph.patterns.product import PRODUCT
from megafuse.graph.plan import Kernel

WORDS = 513
SLOW = pytest.mark.slow  # kernels are interpreted, and rows must be long


def head_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both products of a head's backward: by the weight, and with the tokens."""
    gradient = torch.sigmoid(x[:, :WORDS]) * 0.1
    return gradient @ y[:WORDS, :520], gradient.t() @ x[:, :512]


def transposed_head(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    gradient = torch.sigmoid(x[:, :WORDS]) * 0.1
    return y[:WORDS, :520].t() @ gradient.t(), x[:, :512].t() @ gradient


def tokens_in_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The batch is a dimension of its own until the products."""
    gradient = torch.tanh(x.unflatten(0, (4, -1))[..., :WORDS]).flatten(0, 1)
    return gradient @ y[:WORDS, :520], gradient.t() @ x[:, :512]


def with_bias(x: Tensor, y: Tensor) -> Tensor:
    return F.linear(torch.tanh(x[:, :520]), torch.tanh(y[:520, :WORDS]).t(), y[0, :WORDS])


def given_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Computed elsewhere, as a gradient is that comes in."""
    return x[:, :WORDS] @ y[:WORDS, :520], x[:, :WORDS].t() @ x.tanh()[:, :512]


def given(x: Tensor, y: Tensor) -> Tensor:
    """Not ours: the step pads it, where it pays, when it sees the sizes."""
    return x[:, :WORDS] @ y[:WORDS, :520]


def found(function: Callable[..., Any], dtype: torch.dtype) -> tuple[Graph, list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    args = [(torch.randn(600, 640, generator=generator) * 0.1).to(dtype) for _ in range(2)]
    captured = capture(function, tuple(args), {}, decompositions())
    return matched(clean(lower(captured)), "cuda", rounds=False), args


def pads(graph: Graph) -> int:
    return sum(isinstance(value, Gather) and value.otherwise == 0 for value in graph.values)


@pytest.mark.parametrize(
    ("function", "padded", "kernels"),
    [
        (head_gradient, 2, 2),  # the gradient, and y
        pytest.param(transposed_head, 2, 3, marks=SLOW),  # and the second result cut out
        pytest.param(tokens_in_two, 2, 2, marks=SLOW),
        pytest.param(with_bias, 2, 4, marks=SLOW),  # both factors, the bias; the result cut out
        pytest.param(given_twice, 2, 3, marks=SLOW),
        (given, 0, 0),
    ],
)
def test_what_kernels_compute_is_padded_once(
    function: Callable[..., Any], padded: int, kernels: int
) -> None:
    graph, args = found(function, torch.bfloat16)
    assert pads(graph) == padded
    plan = partition(graph)
    assert sum(isinstance(step, Kernel) for step in plan.steps) == kernels
    want = function(*args)
    want = want if isinstance(want, tuple) else (want,)
    for got, right in zip(run_plan(plan, graph, args), want, strict=True):
        assert got.shape == right.shape
        torch.testing.assert_close(got, right, rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize("function", [head_gradient, pytest.param(tokens_in_two, marks=SLOW)])
def test_zeros_are_written_where_the_rows_are(function: Callable[..., Any]) -> None:
    """On a GPU: one kernel for the gradient, and another for y, which is an argument."""
    graph, args = found(function, torch.bfloat16)
    plan = partition(graph, device="cuda")
    gradient, weight = (step for step in plan.steps if isinstance(step, Kernel))
    assert gradient.body.by_rows
    assert len(gradient.row_outputs) == 520 - WORDS
    assert not weight.row_outputs
    for got, right in zip(run_plan(plan, graph, args), function(*args), strict=True):
        torch.testing.assert_close(got, right, rtol=2**-6, atol=2**-8)


def test_what_others_are_given_is_padded_beside_it() -> None:
    """A result lies as eager's, so its rows have no room for zeros."""

    def with_gradient(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        gradient = torch.sigmoid(x[:, :WORDS]) * 0.1
        return gradient @ y[:WORDS, :520], gradient.t() @ x[:, :512], gradient

    graph, args = found(with_gradient, torch.bfloat16)
    plan = partition(graph, device="cuda")
    assert not any(step.row_outputs for step in plan.kernels)
    for got, right in zip(run_plan(plan, graph, args), with_gradient(*args), strict=True):
        torch.testing.assert_close(got, right, rtol=2**-6, atol=2**-8)


def test_products_have_whole_rows() -> None:
    graph, _ = found(head_gradient, torch.bfloat16)
    first, second = (v for v in graph.values if isinstance(v, Extern) and v.target is PRODUCT)
    assert first.args[0].shape[1] == first.args[1].shape[0] == 520
    assert second.args[0].shape[0] == second.shape[0] == 520


def test_float32_is_left_to_the_split() -> None:
    """Which pads its halves for nothing."""
    graph, _ = found(head_gradient, torch.float32)
    assert pads(graph) == 0
