"""Derivatives of gradients: through the function itself, or refused in words; never a wrong one."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from megafuse.compiler import fuse


def shared(x: Tensor, y: Tensor) -> Tensor:
    h = x + y  # saved, where x and y are not
    return h * torch.sigmoid(h)


def normed(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * y


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (x * y).exp(), x.argmax(-1), (x - y).square().sum()


def pair(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"a": x.sin() * y, "b": y.cumsum(-1)}


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("function", [shared, normed, two, pair], ids=lambda f: f.__name__)
def test_gradgradcheck(function: Any) -> None:
    fused = fuse(function)

    def floats(*given: Tensor) -> list[Tensor]:
        return [t for t in torch.utils._pytree.tree_leaves(fused(*given)) if t.is_floating_point()]

    given = doubles((3, 4), (4,))
    assert gradcheck(floats, given)
    assert gradgradcheck(floats, given)
    assert fused.variants


def test_a_gradient_penalty() -> None:
    """The argument is another operation's result, and the weights want gradients of gradients."""
    x, w = doubles((5, 3), (3, 4))
    fused = fuse(shared)

    def penalty(function: Any) -> list[Tensor]:
        h = x @ w
        (gradient,) = torch.autograd.grad(function(h, h).sum(), x, create_graph=True)
        return list(torch.autograd.grad(gradient.square().sum(), (x, w)))

    torch.testing.assert_close(penalty(fused), penalty(shared))


def test_numbers_keywords_and_flags_come_again() -> None:
    def function(state: dict[str, Tensor], scale: float, n: int, *, kind: str = "sin") -> Tensor:
        return getattr(torch, kind)(state["x"] * scale) * n

    (x,) = doubles((4,))

    def hessian(f: Any) -> Tensor:
        (first,) = torch.autograd.grad(f({"x": x}, 0.5, 3, kind="cos").sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    torch.testing.assert_close(hessian(fuse(function)), hessian(function))


def test_a_view_is_read_where_it_was() -> None:
    (x,) = doubles((4, 6))

    def second(f: Any) -> Tensor:
        (first,) = torch.autograd.grad(f(x.t()[1:], x.t()[:-1]).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(second(fuse(shared)), second(shared))


def test_third_derivative() -> None:
    (x,) = doubles((4,))
    made = fuse(lambda x: x.sin())(x).sum()
    for _ in range(3):
        (made,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    torch.testing.assert_close(made, -x.cos())


def test_an_argument_that_is_gone() -> None:
    """The gradient is right; who differentiates it hears why that cannot be."""
    (x,) = doubles((4,))
    made = fuse(shared)(x * 1, x * 1)
    gc.collect()
    (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(shared(x, x).sum(), x)[0])
    with pytest.raises(RuntimeError, match=r"shared is fused.*gone or was written to"):
        first.sum().backward()


def test_an_argument_that_was_written_to() -> None:
    (x,) = doubles((4,))
    y = torch.randn(4, dtype=torch.float64)
    made = fuse(shared)(x, y)
    y.add_(1)
    (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gone or was written to"):
        first.sum().backward()


def test_random_functions_have_none() -> None:
    (x,) = doubles((64,))
    made = fuse(lambda x: F.dropout(x, 0.5) * x)(x)
    (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="random numbers"):
        first.sum().backward()


def test_functions_that_write_have_none() -> None:
    def written(x: Tensor, out: Tensor) -> Tensor:
        out.add_(1)
        return x.sin() * out

    (x,) = doubles((4,))
    made = fuse(written)(x, torch.zeros(4, dtype=torch.float64))
    (first,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    torch.testing.assert_close(first, x.cos())
    with pytest.raises(RuntimeError, match="writes to its arguments"):
        first.sum().backward()


def test_batched_gradients() -> None:
    """The backward of one graph for many gradients at once: these are no plain tensors."""
    (x,) = doubles((3,))
    made = fuse(lambda x: x.sin() * x.sum())(x)
    expected = torch.autograd.functional.jacobian(lambda x: x.sin() * x.sum(), x)
    (got,) = torch.autograd.grad(made, x, torch.eye(3, dtype=torch.float64), is_grads_batched=True)
    torch.testing.assert_close(got, expected)


def test_hessian_of_torch() -> None:
    (x,) = doubles((3,))
    cube = lambda x: (x**3).sum()  # noqa: E731
    got = torch.autograd.functional.hessian(fuse(cube), x)
    torch.testing.assert_close(got, torch.autograd.functional.hessian(cube, x))
