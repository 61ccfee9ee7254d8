"""What the forward saves for the backward: nothing that is cheaper to compute again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from megafuse.compiler import fuse
from megafuse.compiler.compile import Compiled, compiled
from megafuse.compiler.labels import saved
from megafuse.graph import recompute
from megafuse.graph.ir import Input

pytestmark = pytest.mark.slow  # each test compiles for seconds


def made_for_gpu(function: Any, *args: Any) -> Compiled:
    """Its kernels, without a GPU."""
    return compiled(function, args, {}, "fused", torch.device("cuda"))


def kept(made: Compiled) -> dict[str, tuple[torch.dtype, bool]]:
    """The tensors that are saved: their dtype, and whether they are arguments."""
    values = saved(made.forward[0], made.captured)
    tensors = [v for v in values if v is not None and v.shape]
    return {v.name: (v.dtype, isinstance(v, Input)) for v in tensors}


def checks(function: Any, fused: Any, *args: Tensor) -> None:
    """Result and gradient of the first argument, which has 32 bits at most, as in 64."""
    x, *rest = args
    x = x.detach().requires_grad_()
    exact = x.detach().double().requires_grad_()
    results = fused(x, *rest), function(exact, *rest)
    passed = torch.randn(results[0].shape, dtype=torch.float64)
    (grad,) = torch.autograd.grad(results[0], x, passed.to(results[0].dtype))
    (exactly,) = torch.autograd.grad(results[1], exact, passed)
    torch.testing.assert_close(results[0].double(), results[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad.double(), exactly, rtol=1e-4, atol=1e-5)


def focal(x: Tensor, target: Tensor) -> Tensor:
    """Whose loss makes a zero like x."""
    loss = F.binary_cross_entropy_with_logits(x, target.to(x.dtype), reduction="none")
    return (loss * (1 - x.sigmoid()) ** 2).mean(-1)


def test_a_zero_is_no_tensor() -> None:
    x, target = torch.randn(8, 16), torch.rand(8, 16)
    made = made_for_gpu(focal, x.clone().requires_grad_(), target)
    assert all(is_argument for _, is_argument in kept(made).values()), kept(made)
    assert [len(made.forward[1].steps), len(made.backward[1].steps)] == [1, 1]  # type: ignore[index]
    fused = fuse(focal)
    checks(focal, fused, x, target)
    checks(focal, fused, torch.randn(5, 31), torch.rand(5, 31))
    assert len(fused.variants) == 1


def padded(scores: Tensor, lengths: Tensor) -> Tensor:
    place = torch.arange(scores.shape[-1], device=scores.device)
    padding = place >= lengths[:, None, None, None]
    return torch.softmax(scores.masked_fill(padding, -1e9), -1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_mask_of_lengths_is_made_again(dtype: torch.dtype) -> None:
    """A comparison of two integers of 8 bytes is no reduction, though it gives one byte."""
    lengths = torch.tensor([3, 9], dtype=dtype)
    scores = torch.randn(2, 3, 4, 9)
    made = made_for_gpu(padded, scores.clone().requires_grad_(), lengths)
    assert torch.bool not in [dtype for dtype, _ in kept(made).values()], kept(made)
    assert [len(made.forward[1].steps), len(made.backward[1].steps)] == [1, 1]  # type: ignore[index]
    fused = fuse(padded)
    checks(padded, fused, scores, lengths)
    checks(padded, fused, torch.randn(3, 2, 5, 7), torch.tensor([1, 7, 4], dtype=dtype))
    assert len(fused.variants) == 1


def grouped(x: Tensor) -> Tensor:
    """The size of a group is read from what was reshaped, which nobody needs in memory for that."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    h = wide.reshape(x.shape[0], 4, -1)
    h = h - h.mean(-1, keepdim=True)
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5)
    return F.silu(h.reshape(x.shape))


def turned(x: Tensor) -> Tensor:
    """Nor does a transposed one lie in memory."""
    h = x.to(torch.promote_types(x.dtype, torch.float32)).transpose(1, 2)
    return torch.tanh(h * h.mean((0, 1))) * h


@pytest.mark.parametrize("function", [turned, grouped])
def test_a_cast_of_an_argument_is_made_again(function: Any) -> None:
    x = torch.randn(2, 8, 6, dtype=torch.bfloat16, requires_grad=True)
    found = kept(made_for_gpu(function, x))
    wide = [name for name, (dtype, _) in found.items() if dtype == torch.float32]
    assert (torch.bfloat16, True) in found.values(), found
    small = saved_elements(function, x)
    assert all(small[name] < x.numel() for name in wide), found
    fused = fuse(function)
    checks(function, fused, torch.randn(2, 8, 6))
    checks(function, fused, torch.randn(3, 16, 5))
    assert len(fused.variants) == 1


def saved_elements(function: Any, x: Tensor) -> dict[str, int]:
    """How many elements each saved tensor has, from the graph of this very shape."""
    made = compiled(function, (x,), {}, "fused", torch.device("cuda"), dynamic=False)
    values = saved(made.forward[0], made.captured)
    return {v.name: int(torch.Size(v.shape).numel()) for v in values if v is not None and v.shape}


def scaled(x: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """By a number that both results and the backward need, as a tensor."""
    factor = torch.exp(torch.full((), power, dtype=x.dtype, device=x.device))
    return (x * factor).sum(-1), x.sin() * factor


def test_a_number_is_no_kernel() -> None:
    made = made_for_gpu(scaled, torch.randn(8, 16, requires_grad=True), 0.5)
    plans = [made.forward[1], made.backward[1]]  # type: ignore[index]
    assert all(kernel.shape != () for plan in plans for kernel in plan.kernels)
    fused = fuse(scaled)
    for power, shape in ((0.5, (8, 16)), (-2.0, (5, 31))):
        x = torch.randn(shape, requires_grad=True)
        exact = x.detach().double().requires_grad_()
        mine, theirs = fused(x, power), scaled(exact, power)
        torch.testing.assert_close([t.double() for t in mine], list(theirs), rtol=1e-5, atol=1e-5)
        (grad,) = torch.autograd.grad(mine[0].sum() + mine[1].sum(), x)
        (exactly,) = torch.autograd.grad(theirs[0].sum() + theirs[1].sum(), exact)
        torch.testing.assert_close(grad.double(), exactly, rtol=1e-5, atol=1e-5)
    assert len(fused.variants) == 1


def added_up(x: Tensor, at: Tensor) -> Tensor:
    """Into zeros, by the library: several may have one place."""
    return torch.zeros_like(x).index_add(0, at, x.exp()) * 2


def test_zeros_for_the_library_are_there_before_the_call() -> None:
    x, at = torch.randn(5, 7), torch.tensor([0, 3, 3, 1, 0])
    made = made_for_gpu(added_up, x, at)
    assert [len(kernel.inputs) for kernel in made.forward[1].kernels] == [1, 1]
    fused = fuse(added_up)
    for _ in range(2):  # nobody has written to them
        torch.testing.assert_close(fused(x, at), added_up(x, at))
    torch.testing.assert_close(fused(x[:, :3], at), added_up(x[:, :3], at))


def router(logits: Tensor) -> Tensor:
    p = torch.softmax(logits.float(), -1)
    kept = torch.where(p >= p.mean(-1, keepdim=True), p, 0.0)
    return (kept / kept.sum(-1, keepdim=True)).to(logits.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_wide_softmax_of_narrow_numbers_is_made_again(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 40, dtype=dtype)
    made = made_for_gpu(router, logits.clone().requires_grad_())
    values = [v for v in saved(made.forward[0], made.captured) if v is not None and v.shape]
    whole = [v for v in values if v.shape[-1] != 1]
    assert [len(made.forward[1].steps), len(made.backward[1].steps)] == [1, 1]  # type: ignore[index]
    if dtype == torch.bfloat16:
        assert all(isinstance(v, Input) for v in whole), whole
    checks(router, fuse(router), torch.randn(6, 40))
    checks(router, fuse(router), torch.randn(3, 7))


def test_what_is_made_of_narrow_numbers_counts_more() -> None:
    """So that torch's partitioner saves those: of BERT's loss 2.11's saved logarithms in float32 in
    place of half as many bytes of logits."""

    def made(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        wide = x.unsqueeze(0).float()
        shifted = wide - wide.amax(-1, keepdim=True)
        return shifted.exp() * 2, wide + y.float(), shifted * z, x * 2

    half = torch.randn(6, 40, dtype=torch.bfloat16)
    graph = make_fx(made, tracing_mode="fake")(half, half, torch.randn(6, 40)).graph
    recompute._mark_wide(graph)
    marked = [node.name for node in graph.nodes if recompute._WIDE in node.meta]
    assert marked == ["_to_copy", "sub", "exp", "mul", "_to_copy_1"]
