"""Elements that take turns, x[..., ::2] and x[..., 1::2]: one kernel over the pairs, no masks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from compiler.placed import here
from megafuse.codegen.body import Fetched, terms
from megafuse.codegen.variant import FIRSTS, SECONDS
from megafuse.compiler import fuse
from megafuse.compiler.compile import compiled
from megafuse.compiler.explain import symbols_of
from megafuse.compiler.machine_code import cuda_kernel
from megafuse.graph.plan import Kernel

pytestmark = pytest.mark.slow  # each test compiles for seconds

Rotary = Callable[[Tensor, Tensor, Tensor], Tensor]


def _turned(even: Tensor, odd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)


def flattened(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _turned(x[..., ::2], x[..., 1::2], cos, sin).flatten(-2)


def reshaped(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return _turned(pairs[..., 0], pairs[..., 1], cos, sin).reshape(x.shape)


def unbound(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return _turned(even, odd, cos, sin).view(x.shape)


def repeated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def written(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    return out


SPELLINGS = [flattened, reshaped, unbound, repeated, written]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "from an odd address": lambda x: torch.cat((x.flatten()[:1], x.flatten()))[1:].view_as(x),
    "with gaps": lambda x: torch.cat((x, x[..., :1]), -1)[..., :-1],
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every third": lambda x: x.repeat_interleave(3, -1)[..., ::3],
}


def arguments(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    angles = torch.randn(shape[-2], shape[-1] // 2, device=here())
    x, cos, sin = torch.randn(shape, device=here()), angles.cos(), angles.sin()
    return x.to(dtype), cos.to(dtype), sin.to(dtype)


def check(function: Rotary, fused: Rotary, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Result and gradients, against float64."""
    args = [t.detach().requires_grad_() for t in (x, cos, sin)]
    exact = [t.detach().double().requires_grad_() for t in args]
    made, known = fused(*args), function(*exact)
    assert made.dtype == x.dtype
    assert made.shape == known.shape
    weight = torch.randn_like(known)
    gradients = torch.autograd.grad(made, args, weight.to(x.dtype))
    right = torch.autograd.grad(known, exact, weight.to(x.dtype).double())
    for ours, theirs in zip((made, *gradients), (known, *right), strict=True):
        torch.testing.assert_close(ours, theirs.to(ours.dtype))


@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_any_size(function: Rotary) -> None:
    fused = fuse(function)
    for shape in ((2, 3, 5, 18), (2, 3, 4, 64), (1, 1, 1, 2), (2, 0, 3, 8)):
        check(function, fused, *arguments(*shape))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str) -> None:
    fused = fuse(flattened)
    for shape in ((2, 3, 5, 18), (2, 3, 6, 64)):
        x, cos, sin = arguments(*shape)
        check(flattened, fused, LAYOUTS[layout](x), cos, sin)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_any_dtype(dtype: torch.dtype) -> None:
    fused = fuse(flattened)
    for shape in ((2, 3, 5, 18), (2, 4, 64)):
        x, cos, sin = arguments(*shape, dtype=dtype)
        exact = flattened(x.double(), cos.double(), sin.double())
        torch.testing.assert_close(fused(x, cos, sin), exact.to(dtype))
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(fused(x, cos, sin).sum(), x)
        x64 = x.detach().double().requires_grad_()
        (right,) = torch.autograd.grad(flattened(x64, cos.double(), sin.double()).sum(), x64)
        torch.testing.assert_close(gradient, right.to(dtype))


def test_an_odd_number_of_elements() -> None:
    def gated(x: Tensor) -> Tensor:
        return x[..., 1::2] * 2 - x[..., : x.shape[-1] // 2 * 2 : 2]

    fused = fuse(gated)
    for cols in (9, 8, 1, 33):
        x = torch.randn(4, cols, device=here())
        torch.testing.assert_close(fused(x), gated(x))


def test_other_places_of_one_buffer() -> None:
    """Where the second begins decides whether the two are a pair, and comes anew with each call."""

    def apart(x: Tensor, start: int) -> Tensor:
        return x[:, 0:16:2] * 3 + x[:, start : start + 16 : 2]

    fused = fuse(apart)
    x = torch.randn(5, 40, device=here())
    for start in (1, 9, 3, 17, 1, 8):
        torch.testing.assert_close(fused(x, start), apart(x, start))


@pytest.mark.parametrize("function", SPELLINGS[:4], ids=lambda f: f.__name__)
def test_on_a_gpu_pairs_are_one_vector(function: Rotary) -> None:
    """Forward and backward one kernel each, without masks, whose pairs have 16 bytes at once."""
    x, cos, sin = (t.cpu() for t in arguments(2, 8, 16, 64, dtype=torch.bfloat16))
    args = x.requires_grad_(), cos, sin
    made = compiled(function, args, {}, fuse(function).rounding, torch.device("cuda"), True)
    assert made.backward is not None
    for plan in (made.forward[1], made.backward[1]):
        (step,) = plan.steps
        assert isinstance(step, Kernel)
        assert not any(isinstance(term, Fetched) for term in terms(step.body))
        kernel = cuda_kernel(step, symbols_of(made, args, {}))
        walks = [o.walk for o in kernel.operands]
        assert walks[:2] == [FIRSTS[0], SECONDS[0]]
        assert sorted(walks[2:]) == sorted([FIRSTS[1], SECONDS[1], "c", "c"])
        assert kernel.vector == 4


def test_masks_that_nobody_reads_are_not_written() -> None:
    x, cos, sin = arguments(2, 3, 5, 18)
    args = x.requires_grad_(), cos, sin
    made = compiled(flattened, args, {}, fuse(flattened).rounding, torch.device("cpu"), True)
    assert made.backward is not None
    assert len(made.backward[1].steps) == 1
