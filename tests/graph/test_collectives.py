"""Collectives are steps of the plan that all ranks meet at, with work between begin and wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from megafuse.graph.capture import capture
from megafuse.graph.clean import clean
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.partition import partition
from megafuse.graph.plan import Call, Kernel

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")

if dist.is_available():
    import torch.distributed._functional_collectives  # its operations on fake tensors

GROUP = "0"


def begun(x: Tensor) -> Tensor:
    return torch.ops._c10d_functional.all_reduce(x, "sum", GROUP)


def waited(x: Tensor) -> Tensor:
    return torch.ops._c10d_functional.wait_tensor(x)


def summed(x: Tensor) -> Tensor:
    """As torch's tracer writes it: the wait right behind."""
    return waited(begun(x))


def steps(function: Callable[..., object], *args: Tensor) -> list[str]:
    """The plan in words: `kernel`, or the operation."""
    graph = clean(lower(capture(function, args, {}, decompositions())))
    found = []
    for step in partition(graph).steps:
        assert isinstance(step, (Kernel, Call))
        is_kernel = isinstance(step, Kernel)
        found.append("kernel" if is_kernel else step.target._schema.name.partition("::")[2])
    return found


def test_a_wait_comes_just_before_what_reads_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        total = summed(x)
        return (w @ w) + total

    x = torch.randn(5, 5)
    assert steps(function, x, x) == ["all_reduce", "mm", "wait_tensor", "kernel"]


def test_a_wait_that_only_the_caller_reads_comes_last() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        total = summed(x)
        return total, (w @ w).exp()

    x = torch.randn(5, 5)
    assert steps(function, x, x) == ["all_reduce", "mm", "kernel", "wait_tensor"]


def test_a_collective_does_not_wait_for_later_work() -> None:
    """Both kernels have one shape and would be one launch: then the first sum could only begin
    after the second product."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        first = summed((x @ w) * 2)
        second = summed((w @ x) * 3)
        return first, second

    x = torch.randn(5, 5)
    expected = ["mm", "kernel", "all_reduce"] * 2
    assert steps(function, x, x) == [*expected, "wait_tensor", "wait_tensor"]


def test_all_begin_in_the_order_of_the_graph() -> None:
    """The second needs nothing, and the first waits for a product."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        product = x @ w
        other = torch.ops._c10d_functional.all_gather_into_tensor
        first = summed(product.exp())
        second = waited(other(x, 2, GROUP))
        return first, second

    x = torch.randn(5, 5)
    found = [name for name in steps(function, x, x) if name.startswith("all_")]
    assert found == ["all_reduce", "all_gather_into_tensor"]


def test_none_is_left_out_or_made_one_with_another() -> None:
    """Another rank may have read what this one does not, and waits for it."""

    def function(x: Tensor) -> Tensor:
        summed(x)
        return summed(x) + summed(x)

    found = steps(function, torch.randn(5, 5))
    assert found.count("all_reduce") == found.count("wait_tensor") == 3
