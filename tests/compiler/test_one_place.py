"""Gradients that are 0 but for one place of each row: a choice in a kernel, not a scatter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.placed import here
from megafuse.compiler import fuse
from megafuse.compiler.compile import compiled

pytestmark = pytest.mark.slow  # each test compiles for seconds

SHAPES = ((5, 7), (33, 1), (1, 1), (1, 9), (6, 4))


def smoothed(x: Tensor, at: Tensor) -> Tensor:
    log_p = x.log_softmax(-1)
    return 0.9 * -log_p.gather(-1, at.unsqueeze(-1)).squeeze(-1) - 0.1 * log_p.mean(-1)


def twice(x: Tensor, at: Tensor) -> Tensor:
    """Its gradient has two scatters, one into the sum of the other and more."""
    y = x.gather(-1, at.unsqueeze(-1)).exp()
    return y + (x * 2).gather(-1, at.unsqueeze(-1)).sin() + x.sum(-1, keepdim=True)


def in_the_middle(x: Tensor, at: Tensor) -> Tensor:
    deep = x.unsqueeze(-1) * torch.arange(1.0, 4, device=x.device)
    return deep.gather(1, at[:, None, None].expand(-1, 1, 3)).exp()


def into_itself(x: Tensor, at: Tensor) -> Tensor:
    """The index was given to a gather: the function's own scatters are choices, too."""
    at = at.unsqueeze(-1)
    y = x.gather(-1, at)
    return x.scatter(-1, at, y * 2) + x.scatter_add(-1, at, y.exp()) + x.scatter(-1, at, 3.0)


WITH_PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "smoothed": smoothed,
    "twice": twice,
    "in the middle": in_the_middle,
    "into itself": into_itself,
}
FOUND: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: x.max(-1).values * x.sum(-1),
    "min of columns": lambda x: x.exp().min(0).values,
    "median": lambda x: x.sin().median(-1).values * 2,
    "kthvalue": lambda x: x.kthvalue(1, -1).values.exp(),
    "topk of one": lambda x: x.topk(1).values * x,
    "where it is the largest": lambda x: x.gather(-1, x.argmax(-1, keepdim=True)) * x,
    "one hot": lambda x: torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0) * x,
}


def gradients(function: Any, x: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    result = function(x, *rest)
    torch.manual_seed(1)
    (grad,) = torch.autograd.grad(result, x, torch.randn(result.shape).to(result.dtype))
    return result.detach(), grad


def checks(function: Any, fused: Any, x: Tensor, *rest: Tensor) -> None:
    got, exact = gradients(fused, x, *rest), gradients(function, x.double(), *rest)
    torch.testing.assert_close(got[0].double(), exact[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1].double(), exact[1], rtol=1e-5, atol=1e-5)


def library(function: Any, *args: Tensor) -> list[str]:
    return compiled(function, args, {}, "fused").library


def drawn() -> Iterator[Tensor]:
    torch.manual_seed(0)
    yield from (torch.randn(shape) for shape in SHAPES)


@pytest.mark.parametrize("name", WITH_PLACES)
def test_places_that_are_given(name: str) -> None:
    function = WITH_PLACES[name]
    fused = fuse(function)
    for x in drawn():
        checks(function, fused, x, torch.randint(x.shape[1], (x.shape[0],)))
    assert len(fused.variants) == 4  # sizes of 1 are captured anew, and no others
    x = torch.randn(4, 8, requires_grad=True)
    found = library(function, x, torch.zeros(4, dtype=torch.int64))
    assert not [each for each in found if "scatter" in each], found


@pytest.mark.parametrize("name", FOUND)
def test_places_that_a_reduction_finds(name: str) -> None:
    function = FOUND[name]
    fused = fuse(function)
    for x in drawn():
        checks(function, fused, x)
    found = library(function, torch.randn(4, 8, requires_grad=True))
    assert not [each for each in found if "scatter" in each], found


def test_places_of_32_bits() -> None:
    x = torch.randn(5, 7)
    checks(smoothed, fuse(smoothed), x, torch.tensor([0, 6, 3, 2, 1], dtype=torch.int32))


def test_nothing_to_gather_from() -> None:
    fused = fuse(twice)
    checks(twice, fused, torch.randn(0, 5), torch.zeros(0, dtype=torch.int64))
    checks(twice, fused, torch.randn(3, 5), torch.tensor([4, 0, 2]))


def test_infinities_stay_where_they_are() -> None:
    """Of a gradient that is infinite or NaN, the other places are 0 and not NaN."""

    def picked(x: Tensor, at: Tensor) -> Tensor:
        return x.gather(-1, at)

    x = torch.tensor([[1.0, torch.nan, 2], [torch.inf, 0, 1], [3, 2, 1]], requires_grad=True)
    at = torch.tensor([[0], [2], [1]])
    result = fuse(picked)(x, at)
    assert result.flatten().tolist() == [1, 1, 2]
    passed = torch.tensor([[torch.inf], [-torch.inf], [2]])
    (grad,) = torch.autograd.grad(result, x, passed)
    assert grad.tolist() == [[torch.inf, 0, 0], [0, 0, -torch.inf], [0, 2, 0]]


def unchecked(x: Tensor, at: Tensor) -> Tensor:
    """Nobody knows where these are."""
    return x.sin().scatter(-1, at, 3.0)


def other_size(x: Tensor, at: Tensor) -> Tensor:
    """It was given to a gather, but of more columns."""
    wide = torch.cat((x, x), -1)  # of its gradient there is a gather of x's size, but later
    return wide.gather(-1, at) + x.scatter_add(-1, at, wide[:, :1])


@pytest.mark.parametrize("function", [unchecked, other_size])
def test_what_is_not_known_to_be_a_place_is_the_librarys(function: Any) -> None:
    at = torch.zeros(4, 1, dtype=torch.int64)
    assert any("scatter" in each for each in library(function, torch.randn(4, 8), at))


@pytest.mark.parametrize("function", [smoothed, twice, unchecked, other_size])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("bad", [-1, 8])
def test_what_is_no_place_raises_as_ever(function: Any, grad: bool, bad: int) -> None:
    if here().type != "cpu":
        pytest.skip("an assertion of the device, after which it is of no use")
    x = torch.randn(4, 8, requires_grad=grad)
    at = torch.tensor([0, 7, bad, 1])
    at = at if function in (smoothed, twice) else at.unsqueeze(-1)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        function(x, at)
    with pytest.raises(type(eager.value)) as mine:
        fuse(function)(x, at)
    assert str(mine.value).partition(" for dimension")[0] in str(eager.value)


def test_a_row_of_another_size_raises_as_ever() -> None:
    """Nothing says that the row is as long as x's until it is there."""

    def put(x: Tensor, row: Tensor) -> Tensor:
        return x.select_scatter(row, 0, 1) * 2

    fused = fuse(put)
    x = torch.randn(4, 8)
    torch.testing.assert_close(fused(x, x[0] + 1), put(x, x[0] + 1))
    with pytest.raises(RuntimeError, match="size"):
        fused(x, torch.randn(7))
