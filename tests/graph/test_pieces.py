"""Kernels in pieces, and sizes that the code divides: no masks, no divisions, eager's results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch
from torch import Tensor

from graph import compare
from graph.run_plan import run_plan
from megafuse.codegen.body import Fetched, terms
from megafuse.graph.clean import clean
from megafuse.graph.cost import Device
from megafuse.graph.ir import axis
from megafuse.graph.lowering import lower
from megafuse.graph.partition import partition
from megafuse.graph.pieces import Test as Asked
from megafuse.graph.pieces import pieces
from megafuse.graph.plan import Kernel, Plan


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def chunks(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x[..., ::2], x[..., 1::2]
    return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2)


def shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    cut = x.view(n, c // 4, 2, 2, h, w).permute(0, 1, 4, 2, 5, 3)
    return cut.reshape(n, c // 4, h * 2, w * 2) * 2


def planned(function: Callable[..., Tensor], *args: Tensor, device: Device = "cpu") -> Plan:
    """The plan, after its result was compared with eager's."""
    found = compare.captured(function, *args)
    graph = clean(lower(found))
    plan = partition(graph, device=device)
    (result,) = run_plan(plan, graph, compare.placed(found, args, {}))
    wanted = function(*args)
    torch.testing.assert_close(result, wanted)
    assert result.stride() == wanted.stride()
    return plan


def fetches(plan: Plan) -> int:
    return sum(isinstance(term, Fetched) for kernel in plan.kernels for term in terms(kernel.body))


def only(plan: Plan) -> Kernel:
    (kernel,) = plan.steps
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("function", [rotate_half, chunks, pairs], ids=lambda f: f.__name__)
def test_rotary_embeddings_load_without_masks(function: Callable[..., Tensor]) -> None:
    wide = 8 if function is rotate_half else 4
    args = torch.randn(2, 3, 5, 8), torch.randn(5, wide), torch.randn(5, wide)
    kernel = only(planned(function, *args))
    assert len(kernel.outputs) == 2
    assert kernel.writes == [kernel.outputs[0].buffer]
    assert not any(isinstance(term, Fetched) for term in terms(kernel.body))


def test_on_a_gpu_halves_are_pieces_and_so_are_pairs() -> None:
    """Which are moved as one vector."""
    x = torch.randn(2, 6, 8)
    assert len(only(planned(rotate_half, x, x[0], x[0], device="cuda")).outputs) == 2
    cos = torch.randn(6, 4)
    one, other = only(planned(pairs, x, cos, cos, device="cuda")).outputs
    assert one.strides == other.strides
    assert sympy.sympify(one.offset - other.offset) ** 2 == 1


def test_on_a_gpu_elements_are_not_dealt_out_in_turn_otherwise() -> None:
    """A warp would write every third element, or every second row."""

    def threes(x: Tensor) -> Tensor:
        return torch.stack((x, x * 2, x * 3), -1).flatten(-2)

    def rows(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 0) * 2

    for function, count in ((threes, 3), (rows, 2)):
        x = torch.randn(3, 4)
        assert len(only(planned(function, x)).outputs) == count
        assert len(only(planned(function, x, device="cuda")).outputs) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_element_of_each_pair_is_replaced(device: Device) -> None:
    def replaced(x: Tensor) -> Tensor:
        pairs = x.unflatten(-1, (-1, 2))
        return torch.select_scatter(pairs, pairs[..., 0] + 1, -1, 1) * 2

    assert len(only(planned(replaced, torch.randn(3, 5, 8), device=device)).outputs) == 2


def test_two_dimensions_in_turn() -> None:
    plan = planned(shuffled, torch.randn(2, 8, 3, 5))
    assert len(only(plan).outputs) == 4
    assert fetches(plan) == 0


def test_an_odd_size_has_masks() -> None:
    x = torch.randn(2, 3, 7)
    plan = planned(rotate_half, x, x[0], x[0])
    assert len(only(plan).outputs) == 1
    assert fetches(plan) == 2


def test_pieces_of_other_sizes_have_masks() -> None:
    def padded(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x, y), -1) * 2

    assert fetches(planned(padded, torch.randn(3, 5), torch.randn(3, 4))) == 2


def test_a_size_that_is_divided_is_a_multiple() -> None:
    def halves(x: Tensor, y: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return one * torch.sigmoid(other) + y

    found = compare.captured(halves, torch.randn(3, 8), torch.randn(3, 4))
    graph = clean(lower(found))
    one, other = graph.inputs
    assert one.shape[1] == 2 * other.shape[1]
    assert isinstance(other.shape[1], sympy.Symbol)
    compare.check(halves, torch.randn(3, 8), torch.randn(3, 4))


def test_cuts() -> None:
    half = sympy.Symbol("s0", integer=True, positive=True)
    i = axis(1)
    found = pieces([Asked(i - half, half)], (5, 2 * half), "cpu")
    assert found is not None
    assert found.shape == (5, half)
    assert found.axes == [(axis(0), i), (axis(0), i + half)]
    assert pieces([Asked(i - half, half)], (5, 3 * half + 1), "cpu") is None
    assert pieces([Asked(i - 1, 7)], (5, 8), "cpu") is None  # eight pieces are too many
    assert pieces([], (5, 8), "cpu") is None
