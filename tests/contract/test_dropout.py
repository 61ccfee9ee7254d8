"""dropout_relu draws well, reproducibly, and the same numbers again in its backward."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import megafuse as mf


def kept(shape: tuple[int, ...], p: float, device: str, seed: int | None = None) -> Tensor:
    """The mask that a call draws, as bools."""
    if seed is not None:
        torch.manual_seed(seed)
    return mf.dropout_relu(torch.ones(shape, device=device), p) != 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_kept_fraction(p: float, device: str) -> None:
    """Over all, and over rows, columns and the places in a draw of four: within 5 sigma."""
    rows, cols = 512, 516
    mask = kept((rows, cols), p, device).float().cpu()
    flat = mask.flatten()
    parts = {
        "all": flat[None],
        "rows": mask,
        "columns": mask.t(),
        "lanes": flat.view(-1, 4).t(),
        "halves": flat.view(2, -1),
    }
    for name, part in parts.items():
        sigma = math.sqrt(p * (1 - p) / part.shape[1])
        # 5 sigma for one mean; a little more for the largest of 516.
        worst = ((part.mean(1) - (1 - p)).abs() / sigma).max().item()
        assert worst < 5 + 0.3 * math.log(part.shape[0]), f"{name}: {worst:.1f} sigma"


def test_neighbours_are_independent(device: str) -> None:
    mask = kept((1 << 18,), 0.5, device).float().cpu() * 2 - 1
    for lag in (1, 2, 3, 4, 5, 8, 64, 256, 512, 1024):
        correlation = (mask[lag:] * mask[:-lag]).mean().item() * math.sqrt(mask.numel() - lag)
        assert abs(correlation) < 5, f"lag {lag}: {correlation:.1f} sigma"


def test_calls_are_independent(device: str) -> None:
    first, second = (kept((1 << 18,), 0.5, device).float() * 2 - 1 for _ in range(2))
    assert abs((first * second).mean().item()) * math.sqrt(first.numel()) < 5


def test_seed_decides(device: str) -> None:
    first, other, again = (kept((1003,), 0.5, device, seed) for seed in (7, 8, 7))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(again, kept((1003,), 0.5, device)), "the generator did not advance"


def test_generator_state_decides(device: str) -> None:
    get, put = (
        (torch.cuda.get_rng_state, torch.cuda.set_rng_state)
        if device == "cuda"
        else (torch.get_rng_state, torch.set_rng_state)
    )
    state = get()
    first = kept((1003,), 0.5, device)
    put(state)
    assert torch.equal(first, kept((1003,), 0.5, device))


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_kept_elements_are_scaled(p: float, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(10007, device=device).to(dtype)
    torch.manual_seed(5)
    out = mf.dropout_relu(x, p)
    mask = kept((10007,), p, device, seed=5)
    scale = 1 / (1 - p) if p < 1 else 0.0
    expected = (x.double().relu() * mask * scale).to(dtype)
    torch.testing.assert_close(out, expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_no_draws_outside_training(p: float, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(10007, device=device).to(dtype)
    assert torch.equal(mf.dropout_relu(x, p, False), x.relu())
    assert torch.equal(mf.dropout_relu(x, 0.0), x.relu())
    assert not mf.dropout_relu(x, 1.0).any()


@pytest.mark.parametrize("p", [0.0, 0.3, 0.7, 1.0])
def test_backward_draws_the_same_mask(p: float, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(257, 131, device=device).to(dtype).requires_grad_()
    out = mf.dropout_relu(x, p)
    mf.dropout_relu(x, p)  # a call between must not disturb it
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    assert torch.equal(grad != 0, out != 0)
    scale = torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=dtype, device=device)
    torch.testing.assert_close(grad[grad != 0], scale.expand(int((grad != 0).sum())))


def test_retained_graph_draws_the_same_mask(device: str) -> None:
    x = torch.randn(1003, device=device, requires_grad=True)
    out = mf.dropout_relu(x, 0.4)
    first, second = (torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def layouts(x: Tensor) -> dict[str, Tensor]:
    rows, cols = x.shape
    unaligned = torch.empty(x.numel() + 3, dtype=x.dtype, device=x.device)[3:].view(rows, cols)
    sliced = torch.empty(rows * 2, cols * 3, dtype=x.dtype, device=x.device)[::2, ::3]
    transposed = torch.empty(cols, rows, dtype=x.dtype, device=x.device).t()
    padded = torch.empty(rows, cols + 5, dtype=x.dtype, device=x.device)[:, :cols]
    made = {"unaligned": unaligned, "sliced": sliced, "transposed": transposed, "padded": padded}
    for view in made.values():
        view.copy_(x)
    return made


@pytest.mark.parametrize("shape", [(37, 53), (64, 64), (5, 20001)])
def test_layout_does_not_change_the_mask(shape: tuple[int, int], device: str) -> None:
    """Nor does the dtype, nor how many elements one thread handles.

    Only the order of the dimensions in memory does: numbers are drawn in that order, and the
    backward follows the forward's, whatever the gradient's layout.
    """
    x = torch.rand(shape, device=device) + 0.5
    mask = kept(shape, 0.5, device, seed=3)
    grad = torch.randn(shape, device=device)
    for name, view in {**layouts(x), "bfloat16": x.bfloat16(), "float64": x.double()}.items():
        torch.manual_seed(3)
        leaf = view.detach().requires_grad_()
        out = mf.dropout_relu(leaf, 0.5)
        drawn = out != 0
        assert torch.equal(drawn, mask) or name == "transposed", name
        for other, incoming in layouts(grad).items():
            (got,) = torch.autograd.grad(out, leaf, incoming.to(out.dtype), retain_graph=True)
            assert torch.equal(got != 0, drawn), f"{name}, gradient {other}"
            expected = torch.where(drawn, grad.to(out.dtype) * 2, 0)
            assert torch.equal(got, expected), f"{name}, gradient {other}"


def test_the_flat_tensor_draws_the_same(device: str) -> None:
    mask = kept((20, 30), 0.5, device, seed=3)
    assert torch.equal(mask.flatten(), kept((600,), 0.5, device, seed=3))


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_the_mask(threads: int) -> None:
    before = torch.get_num_threads()
    expected = kept((100003,), 0.5, "cpu", seed=3)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(kept((100003,), 0.5, "cpu", seed=3), expected)
    finally:
        torch.set_num_threads(before)


def test_the_dispatcher_draws_well_and_again_in_backward(device: str) -> None:
    x = torch.rand(1003, device=device) + 0.5
    x.requires_grad_()
    torch.manual_seed(3)
    out, state = torch.ops.megafuse.dropout_relu.default(x, 0.5, True)
    assert state.shape == (2,)
    assert torch.equal(out != 0, kept((1003,), 0.5, device, seed=3))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad != 0, out != 0)


@pytest.mark.parametrize("training", [True, False])
def test_nan_and_inf(training: bool, dtype: torch.dtype, device: str) -> None:
    """PyTorch multiplies by the mask: a dropped NaN stays one, a dropped Inf becomes NaN."""
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 1.0, -1.0, 0.0, -0.0])
    x = special.repeat(301).to(device, dtype)
    torch.manual_seed(5)
    out = mf.dropout_relu(x, 0.5, training)
    mask = kept(tuple(x.shape), 0.5, device, seed=5) if training else torch.ones_like(x, dtype=bool)
    expected = x.relu() * mask.to(dtype) * (2 if training else 1)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-0", "1"])
def test_backward_of_special_values(value: str, dtype: torch.dtype, device: str) -> None:
    """The gradient flows exactly where relu's does."""
    for incoming in (1.0, float("nan"), float("inf")):
        x = torch.full((64,), float(value), device=device, dtype=dtype, requires_grad=True)
        grad = torch.full_like(x, incoming)
        (ours,) = torch.autograd.grad(mf.dropout_relu(x, 0.0), x, grad)
        (theirs,) = torch.autograd.grad(mf.reference.dropout_relu(x, 0.0), x, grad)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (), (1,), (3, 0)])
def test_small(shape: tuple[int, ...], device: str) -> None:
    x = torch.ones(shape, device=device, requires_grad=True)
    out = mf.dropout_relu(x, 0.5)
    out.sum().backward()
    assert x.grad is not None
    assert out.shape == x.grad.shape == shape
    assert torch.equal(out != 0, x.grad != 0)


def test_second_derivative_is_zero(device: str) -> None:
    x = (torch.rand(50, device=device, dtype=torch.float64) + 0.5).requires_grad_()
    out = mf.dropout_relu(x, 0.5)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.equal(grad != 0, out != 0), "another mask than the forward's"
    (again,) = torch.autograd.grad((grad * x).sum(), x)
    assert torch.equal(again != 0, out != 0)
