"""One element of each row is gathered from arguments, not from what is computed of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.placed import here
from megafuse.compiler import fuse
from megafuse.compiler.compile import compiled
from megafuse.graph.plan import Call

pytestmark = pytest.mark.slow  # each test compiles for seconds


def log_p(x: Tensor, at: Tensor) -> Tensor:
    return x.log_softmax(-1).gather(-1, at.unsqueeze(-1)).squeeze(-1)


def smoothed(x: Tensor, at: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).log_softmax(-1)
    return 0.9 * wide.gather(-1, at.unsqueeze(-1)).squeeze(-1) + wide.mean(-1)


def of_columns(x: Tensor, at: Tensor) -> Tensor:
    """Along the first dimension, of as many places as rows: no more than there are columns."""
    turned = (x * 2).exp().t()
    return turned.gather(0, at.unsqueeze(0)) + 1


def in_the_middle(x: Tensor, at: Tensor) -> Tensor:
    deep = x.unsqueeze(-1) * torch.arange(1.0, 4, device=x.device).to(x.dtype)
    return (deep - deep.amax(1, keepdim=True)).gather(1, at[:, None, None].expand(-1, 1, 3))


def with_its_place(x: Tensor, at: Tensor) -> Tensor:
    """The coordinate along the dimension is the index itself."""
    place = torch.arange(x.shape[-1], device=x.device)
    return torch.where(place > 2, x * 3, -x).gather(-1, at.unsqueeze(-1)) * 2


def of_a_slice(x: Tensor, at: Tensor) -> Tensor:
    """Its places are counted from where the slice begins."""
    return x[:, 1:].softmax(-1).gather(-1, at.unsqueeze(-1) // 2)


def of_half_the_rows(x: Tensor, at: Tensor) -> Tensor:
    return x.softmax(-1).gather(-1, at[: at.shape[0] // 2].unsqueeze(-1))


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "log_softmax": log_p,
    "smoothed": smoothed,
    "of columns": of_columns,
    "in the middle": in_the_middle,
    "with its place": with_its_place,
    "of a slice": of_a_slice,
    "of half the rows": of_half_the_rows,
}
SHAPES = ((6, 7), (34, 5), (4, 9))


def drawn(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, columns), torch.randint(columns, (rows,))


def gathers(function: Any, *args: Tensor) -> list[bool]:
    """Of each gather of the library's, whether it reads an argument."""
    plan = compiled(function, args, {}, "fused").forward[1]
    calls = [step for step in plan.steps if isinstance(step, Call) and "gather" in str(step.target)]
    return [call.args[0].buffer.argument is not None for call in calls]


def checks(function: Any, fused: Any, x: Tensor, at: Tensor, tolerance: float = 1e-5) -> None:
    mine, exact = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    results = fused(mine, at), function(exact, at)
    torch.testing.assert_close(results[0].double(), results[1], rtol=tolerance, atol=tolerance)
    passed = torch.randn(results[1].shape, dtype=torch.float64)
    (grad,) = torch.autograd.grad(results[0], mine, passed.to(results[0].dtype))
    (exactly,) = torch.autograd.grad(results[1], exact, passed)
    torch.testing.assert_close(grad.double(), exactly, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_float64(name: str) -> None:
    function = FUNCTIONS[name]
    fused = fuse(function)
    for shape in SHAPES:
        checks(function, fused, *drawn(*shape))
    assert len(fused.variants) == 1
    with torch.no_grad():
        x, at = drawn(*SHAPES[0])
        torch.testing.assert_close(fused(x, at).double(), function(x.double(), at))
        assert gathers(function, x, at) == [True]


@pytest.mark.parametrize("name", ["log_softmax", "smoothed"])
def test_sixteen_bits(name: str) -> None:
    function = FUNCTIONS[name]
    x, at = drawn(33, 17)
    checks(function, fuse(function), x.bfloat16(), at, tolerance=3e-2)


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (5, 1), (1, 1)])
def test_few_or_none(shape: tuple[int, int]) -> None:
    checks(smoothed, fuse(smoothed), *drawn(*shape))


def test_long_rows() -> None:
    """Whose logarithms are taken apart, and of a language model's shape."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        rows = wide.reshape(-1, wide.shape[-1]).log_softmax(-1)
        return -rows.gather(-1, labels.reshape(-1, 1)).mean()

    fused = fuse(loss)
    for batch, length in ((2, 3), (3, 5)):
        x, at = torch.randn(batch, length, 2051), torch.randint(2051, (batch, length))
        checks(loss, fused, x, at)
    assert gathers(loss, x, at) == [True]
    assert len(fused.variants) == 1


def test_minus_infinity_and_nan() -> None:
    x = torch.tensor([[1.0, -torch.inf, 2], [torch.nan, 0, 1], [-torch.inf] * 3])
    at = torch.tensor([1, 2, 0])
    result = fuse(log_p)(x, at)
    torch.testing.assert_close(result, log_p(x, at), equal_nan=True)


def test_what_is_in_memory_anyway_is_gathered_from() -> None:
    """Results are; and where too much would have to be gathered, the library is asked as before."""

    def returned(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        p = x.softmax(-1)
        return p, p.gather(-1, at.unsqueeze(-1))

    def of_three(a: Tensor, b: Tensor, c: Tensor, at: Tensor) -> Tensor:
        return (a * b + c).gather(-1, at.unsqueeze(-1))

    def across(x: Tensor, at: Tensor) -> Tensor:
        return (x - x.mean(0)).gather(-1, at.unsqueeze(-1))

    x, at = drawn(6, 7)
    assert gathers(returned, x, at) == [False]
    assert gathers(of_three, x, x + 1, x + 2, at) == [False]
    assert gathers(across, x, at) == [False]
    torch.testing.assert_close(fuse(returned)(x, at), returned(x, at))
    torch.testing.assert_close(fuse(of_three)(x, x + 1, x + 2, at), of_three(x, x + 1, x + 2, at))
    torch.testing.assert_close(fuse(across)(x, at), across(x, at))


def test_of_two_arguments() -> None:
    def product(a: Tensor, b: Tensor, at: Tensor) -> Tensor:
        return (a.exp() * b.sum(-1, keepdim=True) / b).gather(-1, at.unsqueeze(-1))

    x, at = drawn(6, 7)
    other = torch.rand(6, 7) + 1
    assert gathers(product, x, other, at) == [True, True]
    torch.testing.assert_close(fuse(product)(x, other, at), product(x, other, at))


def test_more_than_is_worth_it() -> None:
    """Of a long computation, with values that are read twice each: as before, and in time."""

    def long(x: Tensor, at: Tensor) -> Tensor:
        for _ in range(60):
            x = x.sin() * x.cos() + x
        return x.gather(-1, at.unsqueeze(-1))

    x, at = drawn(6, 7)
    assert gathers(long, x, at) == [False]
    torch.testing.assert_close(fuse(long)(x, at), long(x, at), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [log_p, smoothed, with_its_place])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("bad", [-1, 7])
def test_what_is_no_place_raises_as_ever(function: Any, grad: bool, bad: int) -> None:
    if here().type != "cpu":
        pytest.skip("an assertion of the device, after which it is of no use")
    x, at = drawn(6, 7)
    at[3] = bad
    x.requires_grad_(grad)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        function(x, at)
    with pytest.raises(type(eager.value)) as mine:
        fuse(function)(x, at)
    assert str(mine.value).partition(" for dimension")[0] in str(eager.value)


@pytest.mark.parametrize("rows", [3, 6])
def test_more_places_than_rows_raise_as_ever(rows: int) -> None:
    """However many there were when it was compiled: all rows, or some."""
    x, at = drawn(6, 7)
    fused = fuse(log_p)
    torch.testing.assert_close(fused(x, at[:rows]), log_p(x, at[:rows]))
    with pytest.raises(RuntimeError, match="no larger than self"):
        fused(x, torch.cat((at, at)))
    torch.testing.assert_close(fused(x, at[:4]), log_p(x, at[:4]))
