"""Functions that split a dimension by halves, in turn or in groups, at sizes that fit or do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from selection import often
from torch import Tensor

from megafuse.compiler import fuse

pytestmark = pytest.mark.usefixtures("poisoned")


def rotate_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x[..., ::2], x[..., 1::2]
    return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = x.reshape(x.shape[0], 4, -1)
    centred = y - y.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return y.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def same(function: Callable[..., Tensor], args: list[Tensor], fused: Callable[..., Tensor]) -> None:
    """Results and gradients, against eager in float64."""
    exact = [arg.detach().double().requires_grad_() for arg in args]
    want = function(*exact)
    made = fused(*args)
    loose = {"rtol": 1e-5, "atol": 1e-5} if args[0].dtype == torch.float32 else {}
    loose = loose or {"rtol": 2e-2, "atol": 5e-2}
    torch.testing.assert_close(made.double(), want, **loose)
    grad = torch.randn_like(made)
    mine = torch.autograd.grad(made, args, grad)
    for one, other in zip(mine, torch.autograd.grad(want, exact, grad.double()), strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=loose["rtol"] * 4, atol=loose["atol"] * 4
        )


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.slow
def test_halves_of_even_and_of_odd_sizes() -> None:
    fused = fuse(rotate_half)
    for wide, variants in ((8, 1), (128, 1), (7, 2), (9, 2), (30, 2)):
        args = drawn((2, 3, wide), (3, wide), (3, wide), dtype=torch.float32)
        same(rotate_half, args, fused)
        assert len(fused.variants) == variants


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_pairs(dtype: torch.dtype) -> None:
    fused = fuse(pairs)
    for wide in (8, 130, 64):
        args = drawn((3, 5, wide), (5, wide // 2), (5, wide // 2), dtype=dtype)
        same(pairs, args, fused)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    often([torch.float32, torch.bfloat16, torch.float16], [torch.float32, torch.bfloat16]),
    ids=str,
)
def test_weights_of_groups(dtype: torch.dtype) -> None:
    """Runs of 323, 35, 2 and 1024 elements have one weight; the row is long, odd or short."""
    fused = fuse(group_norm)
    for channels, high, wide in ((8, 17, 19), (12, 5, 7), (40, 1, 2), (4, 32, 32)):
        args = drawn((2, channels, high, wide), (channels,), (channels,), dtype=dtype)
        same(group_norm, args, fused)


@pytest.mark.slow
def test_strided_arguments_in_pieces() -> None:
    fused = fuse(rotate_half)
    x = torch.randn(3, 12, 5).transpose(1, 2).requires_grad_()
    table = torch.randn(5, 24)[:, ::2].requires_grad_()
    same(rotate_half, [x, table, table.detach().clone().requires_grad_()], fused)


def test_nothing_is_read_twice_in_place() -> None:
    """The piece that is written first must not change what the second one reads."""

    @fuse
    def turned(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        x.copy_(torch.cat((-other, one), -1))
        return x

    x = torch.randn(4, 16)
    want = torch.cat((-x[:, 8:], x[:, :8]), -1)
    torch.testing.assert_close(turned(x), want)
    torch.testing.assert_close(x, want)


def test_a_number_that_a_size_must_equal_is_checked() -> None:
    @fuse
    def chosen(x: Tensor, count: int) -> Tensor:
        return x * 2 if x.shape[-1] == count else x - 1

    for wide, count in ((6, 6), (6, 5), (8, 8), (5, 6)):
        x = torch.randn(3, wide)
        torch.testing.assert_close(chosen(x, count), chosen.function(x, count))


def test_a_backward_that_gets_sizes_as_numbers() -> None:
    """The gradient of a mean has no shape of its own: what it needs is saved, a multiple too."""

    @fuse
    def mean(x: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return (one - other).mean()

    for wide in (8, 30):
        x = torch.randn(3, wide, requires_grad=True)
        (mine,) = torch.autograd.grad(mean(x), x)
        (want,) = torch.autograd.grad(mean.function(x), x)
        torch.testing.assert_close(mine, want)


@pytest.mark.slow
def test_heads_of_several_layers() -> None:
    """Each layer's heads make a guard of products of sizes beside the one that says it all."""

    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(2):
            heads = (x @ w).view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2)
            weights = torch.softmax(heads @ heads.transpose(-1, -2), -1)
            x = x + (weights @ heads).transpose(1, 2).reshape(x.shape)
        return x

    fused = fuse(layers)
    for batch, length, width in ((3, 5, 24), (2, 4, 8)):
        args = torch.randn(batch, length, width), torch.randn(width, width) / width**0.5
        torch.testing.assert_close(fused(*args), layers(*args), rtol=1e-4, atol=1e-4)
    assert len(fused.variants) == 1
