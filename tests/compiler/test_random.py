"""Random numbers inside of fused functions: their distribution, their seeds, their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import megafuse as mf
from compiler.placed import here
from megafuse.compiler.fused import Fused
from megafuse.graph import draws, philox
from megafuse.graph.plan import Call, Kernel

pytestmark = pytest.mark.slow  # each test compiles for seconds

ROWS, COLS = 257, 1021  # 262,397 elements
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def drop(x: Tensor, p: float) -> Tensor:
    return F.dropout(x, p)


def drop_twice(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    return F.dropout(x, p), F.dropout(x, p)


def uniform(x: Tensor) -> Tensor:
    return torch.rand_like(x)


def normal(x: Tensor) -> Tensor:
    return torch.randn_like(x)


@pytest.fixture(scope="module")
def fused_drop() -> Fused:
    return mf.fuse(drop)


@pytest.fixture
def ones() -> Tensor:
    return torch.ones(ROWS, COLS)


def seeded(function: Callable[..., Any], *args: Any, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return function(*args)


def steps(function: Fused, *args: Any) -> tuple[list[Any], list[Any]]:
    """Of the forward and of the backward; the draw of the state is the one call."""
    from megafuse.compiler.compile import compiled

    made = compiled(function.function, args, {}, "fused")
    assert made.backward is not None
    return made.forward[1].steps, made.backward[1].steps


def test_dropout_is_one_kernel_and_saves_16_bytes(fused_drop: Fused) -> None:
    x = torch.ones(4, 8, requires_grad=True)
    text = str(fused_drop.explain(x, 0.5))
    assert "saved for the backward: 16 B" in text
    forward, backward = steps(fused_drop, x, 0.5)
    assert [type(step) for step in forward] == [Call, Kernel]
    assert [type(step) for step in backward] == [Kernel]


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.93, 1.0, 0, 1])
def test_kept_share(fused_drop: Fused, ones: Tensor, p: float) -> None:
    out = seeded(fused_drop, ones, p)
    kept = out != 0
    n = ones.numel()
    bound = 5 * math.sqrt(p * (1 - p) * n)  # standard deviations
    assert abs(kept.sum().item() - (1 - p) * n) <= bound
    assert torch.equal(out[kept], torch.full_like(out[kept], 1 / (1 - p) if p < 1 else 0))
    # Each row and each column for itself: nothing repeats along either.
    for dim, count in ((0, ROWS), (1, COLS)):
        share = kept.double().mean(dim)
        assert (share - (1 - p)).abs().max() <= 6 * math.sqrt(p * (1 - p) / count)


def test_p_is_no_reason_to_compile(fused_drop: Fused, ones: Tensor) -> None:
    fused_drop(ones, 0.25)
    before = len(fused_drop.variants)
    for p in (0.1, 0.2, 0.9):
        fused_drop(ones[:11], p)
    assert len(fused_drop.variants) == before


def test_p_out_of_range(fused_drop: Fused, ones: Tensor) -> None:
    for p in (-0.1, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            fused_drop(ones, p)


def test_seed(fused_drop: Fused, ones: Tensor) -> None:
    first, second = seeded(fused_drop, ones, 0.5), fused_drop(ones, 0.5)
    assert not torch.equal(first, second)
    assert torch.equal(first, seeded(fused_drop, ones, 0.5))
    assert torch.equal(second, fused_drop(ones, 0.5))
    assert not torch.equal(first, seeded(fused_drop, ones, 0.5, seed=2))


def test_not_training_is_the_identity(ones: Tensor) -> None:
    fused = mf.fuse(lambda x, training: F.dropout(x, 0.5, training) * 2)
    assert torch.equal(fused(ones, False), ones * 2)
    assert not torch.equal(fused(ones, True), ones * 2)


def test_two_draws_are_independent(ones: Tensor) -> None:
    a, b = seeded(mf.fuse(drop_twice), ones, 0.5)
    both = ((a != 0) & (b != 0)).double().mean().item()
    assert abs(both - 0.25) < 5 * math.sqrt(0.25 * 0.75 / ones.numel())
    # Nor is one the other, shifted.
    first, second = (a != 0).flatten().double() - 0.5, (b != 0).flatten().double() - 0.5
    for shift in range(9):
        agree = (first[: len(first) - shift] * second[shift:]).mean().item() * 4
        assert abs(agree) < 5 / math.sqrt(ones.numel())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_is_of_the_same_mask(fused_drop: Fused, dtype: torch.dtype) -> None:
    x = torch.randn(33, 65, dtype=dtype).abs().add_(0.5).requires_grad_()
    out = seeded(fused_drop, x, 0.25)
    fused_drop(torch.ones(5, 3), 0.5)  # another draw in between
    gradient = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, x, gradient)
    expected = torch.where(out == 0, torch.zeros_like(grad), (gradient.double() / 0.75).to(dtype))
    torch.testing.assert_close(grad, expected, rtol=torch.finfo(dtype).eps, atol=0)
    assert torch.equal(grad == 0, (out == 0) | (gradient == 0))


def test_gradient_of_a_row_wise_function_draws_again() -> None:
    def noisy_norm(x: Tensor, p: float) -> Tensor:
        return F.layer_norm(F.dropout(x, p) * torch.rand_like(x), (x.shape[-1],))

    fused = mf.fuse(noisy_norm)
    x = torch.randn(40, 130, requires_grad=True)
    weight = torch.randn(40, 130)
    out = seeded(fused, x, 0.3)
    (grad,) = torch.autograd.grad(out, x, weight)
    state = seeded(draws.ops.state, here())
    index = torch.arange(x.numel()).reshape(x.shape)
    first, second = (
        philox.uniform(state[0], state[1] + k, index, torch.float32).double() for k in range(2)
    )
    factor = torch.where(first < 0.3, 0, 1 / 0.7) * second
    exact = x.detach().double().requires_grad_()
    reference = F.layer_norm(exact * factor, (x.shape[-1],))
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-5)
    (expected,) = torch.autograd.grad(reference, exact, weight.double())
    torch.testing.assert_close(grad.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_element_s_place_decides(fused_drop: Fused, ones: Tensor, threads: int) -> None:
    """Whatever the layout and the number of threads."""
    expected = seeded(fused_drop, ones, 0.5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for x in (ones, ones.t().contiguous().t(), ones[:, ::1].as_strided((ROWS, COLS), (0, 1))):
            assert torch.equal(seeded(fused_drop, x, 0.5), expected)
    finally:
        torch.set_num_threads(before)
    three = seeded(mf.fuse(lambda x, p: F.dropout(x, p)), ones[:256].reshape(4, 64, COLS), 0.5)
    assert torch.equal(three.reshape(256, COLS), expected[:256])


def distance(sample: Tensor, share: Callable[[Tensor], Tensor]) -> float:
    """Kolmogorov and Smirnov's: the largest difference to the distribution, times sqrt(n)."""
    ordered = sample.double().flatten().sort().values
    n = len(ordered)
    expected = share(ordered)
    above = (torch.arange(1, n + 1) / n - expected).max()
    below = (expected - torch.arange(n) / n).max()
    return max(above.item(), below.item()) * math.sqrt(n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform(ones: Tensor, dtype: torch.dtype) -> None:
    out = seeded(mf.fuse(uniform), ones.to(dtype)).double()
    assert out.min() >= 0
    assert out.max() < 1
    n = out.numel()
    step = 2.0 ** -{torch.bfloat16: 8, torch.float16: 11}.get(dtype, 60)
    assert abs(out.mean().item() - (1 - step) / 2) < 5 / math.sqrt(12 * n)
    assert abs(out.var().item() - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    if step < 1e-6:
        assert distance(out, lambda x: x) < 2  # beyond with a probability of 7e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_normal(ones: Tensor, dtype: torch.dtype) -> None:
    out = seeded(mf.fuse(normal), ones.to(dtype)).double()
    n = out.numel()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        found = out.pow(power).mean().item()
        assert abs(found - moment) < 5 * math.sqrt(variance / n), power
    if dtype.itemsize >= 4:
        assert distance(out, lambda x: torch.special.ndtr(x)) < 2
    flat = out.flatten()
    for shift in range(1, 5):
        assert abs((flat[:-shift] * flat[shift:]).mean().item()) < 5 / math.sqrt(n)
        squares = (flat[:-shift].square() - 1) * (flat[shift:].square() - 1)
        assert abs(squares.mean().item()) < 5 * 2 / math.sqrt(n)


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_kernels_draw_what_the_reference_draws(kind: str, dtype: torch.dtype) -> None:
    x = torch.zeros(37, 53, dtype=dtype)
    out = seeded(mf.fuse({"uniform": uniform, "normal": normal}[kind]), x)
    state = seeded(draws.ops.state, here())
    index = torch.arange(x.numel()).reshape(x.shape)
    expected = getattr(philox, kind)(state[0], state[1], index, dtype)
    if kind == "uniform":
        assert torch.equal(out, expected)
    else:  # near 0 a radius is the square root of a small difference
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


def many(x: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    return (
        torch.bernoulli(p),
        torch.empty_like(x).bernoulli_(0.2),
        torch.empty_like(x).uniform_(-2, 3),
        torch.empty_like(x).normal_(5, 2),
        torch.rand(x.shape),
        torch.randn(x.shape),
        F.dropout(x.clone(), 0.5, inplace=True),
        torch.dropout(x, 0.5, train=True),
        torch.native_dropout(x, 0.3, True)[0],
        F.dropout2d(x[None, :, :, None], 0.5),
    )


def test_what_else_draws(ones: Tensor) -> None:
    means = [0.5, 0.2, 0.5, 5, 0.5, 0, 1, 1, 1, 1]
    p = torch.full_like(ones, 0.5)
    results = seeded(mf.fuse(many), ones, p)
    for mean, out in zip(means[:-1], results[:-1], strict=True):
        assert abs(out.mean().item() - mean) < 5 * 2 / math.sqrt(ones.numel()), mean
    assert abs(results[-1].mean().item() - 1) < 5 / math.sqrt(ROWS)  # whole channels
    assert len({round(r.double().sum().item(), 3) for r in results}) == len(results)
    assert results[2].min() >= -2
    assert results[2].max() < 3


def test_a_generator_of_the_user_s_stays_the_source(ones: Tensor) -> None:
    generator = torch.Generator(here())

    def noisy(x: Tensor) -> Tensor:
        return x + torch.bernoulli(x * 0.5, generator=generator)

    fused = mf.fuse(noisy)
    generator.manual_seed(3)
    out = fused(ones)
    generator.manual_seed(3)
    assert torch.equal(out, noisy(ones))
    assert not torch.equal(fused(ones), out)


def test_no_second_derivative_with_other_numbers(fused_drop: Fused) -> None:
    """Running the function again would draw another mask."""
    x = torch.randn(5, 7, requires_grad=True)
    (grad,) = torch.autograd.grad(fused_drop(x, 0.5).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        grad.sum().backward()


def test_rounding_as_eager(ones: Tensor) -> None:
    fused = mf.fuse(drop, rounding="eager")
    out = seeded(fused, ones.bfloat16(), 0.3)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).bfloat16().item()}


def test_special_values(fused_drop: Fused) -> None:
    x = torch.full((64, 64), math.inf)
    out = seeded(fused_drop, x, 0.5)
    dropped = out.isnan()  # inf · 0, as in PyTorch
    assert dropped.any()
    assert torch.equal(out[~dropped], x[~dropped])
