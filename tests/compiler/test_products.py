"""Matrix products inside of fused functions: by the library, and one kernel for what surrounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import megafuse as mf
from compiler.placed import here
from megafuse.graph.capture import capture
from megafuse.graph.clean import clean
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.partition import partition
from megafuse.graph.plan import Call, Kernel, Plan

pytestmark = pytest.mark.slow  # each test compiles for seconds

HALVES = [torch.bfloat16, torch.float16]


def matmul_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x @ weight.t() + bias)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def addmm_silu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(torch.addmm(bias, x, weight.t(), beta=0.5, alpha=2)) + x[:, :1]


def batched(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    scores = torch.bmm(x.expand(3, *x.shape), weight.t().expand(3, *weight.t().shape))
    return torch.tanh(scores * 0.5 + bias)


FUNCTIONS = [matmul_gelu, linear_gelu, addmm_silu, batched]


def arguments(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(here()).manual_seed(0)
    shapes = (33, 65), (17, 65), (17,)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)  # type: ignore[return-value]


def plan(function: Callable[..., Any], args: tuple[Any, ...], **how: Any) -> Plan:
    captured = capture(function, args, {}, decompositions())
    return partition(clean(lower(captured, **how)))


def kinds(made: Plan) -> list[type]:
    return [type(step) for step in made.steps]


def test_what_surrounds_a_product_is_one_kernel() -> None:
    made = plan(matmul_gelu, arguments(torch.float32))
    assert kinds(made) == [Call, Kernel]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_widened_products_are_rounded_once(function: Callable[..., Any]) -> None:
    """The kernel after the product reads it in float32, bias and all."""
    made = plan(function, arguments(torch.bfloat16), widens=[torch.bfloat16])
    (product,) = [step for step in made.steps if isinstance(step, Call)]
    (buffer,) = product.writes
    assert buffer is not None
    assert buffer.dtype == torch.float32
    factors = [arg for arg in product.args if arg is not None]
    assert [arg.buffer.dtype for arg in factors] == [torch.float32] * 2
    after = made.steps[made.steps.index(product) + 1 :]
    assert [type(step) for step in after] == [Kernel]


def test_a_transposed_weight_is_widened_as_it_lies() -> None:
    made = plan(matmul_gelu, arguments(torch.bfloat16), widens=[torch.bfloat16])
    (product,) = [step for step in made.steps if isinstance(step, Call)]
    assert product.args[1].strides[0] == 1


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_accurate_as_eager(function: Callable[..., Any], dtype: torch.dtype) -> None:
    args = [a.requires_grad_() for a in arguments(dtype)]
    wide = [a.detach().double().requires_grad_() for a in args]
    gradient = torch.randn_like(function(*wide), dtype=torch.float32).to(dtype)

    def run(made: Callable[..., Any], given: list[Tensor]) -> tuple[Tensor, ...]:
        out = made(*given)
        return (out, *torch.autograd.grad(out, given, gradient.to(out.dtype)))

    # oneDNN would fail at 16-bit products here, and PyTorch then does without it for good.
    with torch.backends.mkldnn.flags(enabled=False):
        eager = run(function, args)
    runs = run(function, wide), eager, run(mf.fuse(function), args)
    for right, theirs, ours in zip(*runs, strict=True):
        assert ours.dtype == theirs.dtype
        error = (ours.double() - right).abs().max()
        allowed = (theirs.double() - right).abs().max()
        assert error <= 1.5 * allowed + torch.finfo(dtype).eps * right.abs().max()
