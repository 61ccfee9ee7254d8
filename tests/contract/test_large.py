"""More than 2³¹ elements: `pytest -m large`, on a GPU with 40 GB or more free."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import megafuse as mf

NUMEL = (1 << 31) + 3

pytestmark = [pytest.mark.large, pytest.mark.cuda]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.fixture(autouse=True)
def memory() -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < 40 << 30:
        pytest.skip(f"needs 40 GB of GPU memory, {free >> 30} are free")


def same_in_pieces(got: Tensor, expected: Callable[[slice], Tensor]) -> None:
    """Piece by piece, so that the reference's intermediates stay small."""
    step = 1 << 28
    for first in range(0, got.numel(), step):
        piece = slice(first, min(first + step, got.numel()))
        torch.testing.assert_close(got[piece], expected(piece), rtol=2**-7, atol=2**-7)


def filled(numel: int) -> Tensor:
    """Random, but quick to make: every million repeats."""
    block = torch.randn(1_000_003, device="cuda", dtype=torch.bfloat16)
    return block.repeat(-(-numel // block.numel()))[:numel]


def test_gelu_scale() -> None:
    x = filled(NUMEL).requires_grad_()
    out = mf.gelu_scale(x, 1.7)
    same_in_pieces(out.detach(), lambda p: mf.reference.gelu_scale(x.detach()[p], 1.7))
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out))
    del out

    def expected(piece: slice) -> Tensor:
        part = x.detach()[piece].requires_grad_()
        return torch.autograd.grad(mf.reference.gelu_scale(part, 1.7).sum(), part)[0]

    same_in_pieces(grad, expected)


def test_bias_act() -> None:
    rows, cols = (1 << 31) // 4096 + 1, 4096
    x = filled(rows * cols).view(rows, cols).requires_grad_()
    bias = torch.randn(cols, device="cuda", dtype=torch.bfloat16).requires_grad_()
    out = mf.bias_act(x, bias, "silu")
    for piece in (slice(0, 4096), slice(rows // 2, rows // 2 + 4096), slice(rows - 4096, rows)):
        expected = mf.reference.bias_act(x.detach()[piece], bias.detach(), "silu")
        torch.testing.assert_close(out.detach()[piece], expected, rtol=2**-7, atol=2**-7)
    grads = torch.autograd.grad(out, (x, bias), torch.ones_like(out))
    del out
    total = torch.zeros(cols, device="cuda", dtype=torch.float64)
    for first in range(0, rows, 1 << 16):
        part = x.detach()[first : first + (1 << 16)].float().requires_grad_()
        local = mf.reference.bias_act(part, bias.detach().float(), "silu")
        (wanted,) = torch.autograd.grad(local.sum(), part)
        total += wanted.sum(0, dtype=torch.float64)
        got = grads[0][first : first + (1 << 16)].float()
        torch.testing.assert_close(got, wanted, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(grads[1].double(), total, rtol=2**-7, atol=1.0)


def test_odd_and_unaligned() -> None:
    x = filled(NUMEL + 1)[1:]
    out = mf.dropout_relu(x, 0.0)
    same_in_pieces(out, lambda p: x[p].relu())


def test_offsets_beyond_31_bits() -> None:
    """Few elements, far apart: the index is small and the offset is not."""
    wide = filled(3 << 30).view(3, 1 << 30)
    view = wide[:, :: 1 << 20]
    assert view.stride(0) * 2 + view.stride(1) * (view.shape[1] - 1) > 1 << 31
    torch.testing.assert_close(mf.gelu_scale(view, 1.7), mf.reference.gelu_scale(view, 1.7))
    x = view.detach().requires_grad_()
    (got,) = torch.autograd.grad(mf.gelu_scale(x, 1.7).sum(), x)
    (expected,) = torch.autograd.grad(mf.reference.gelu_scale(x, 1.7).sum(), x)
    torch.testing.assert_close(got, expected)


def test_the_mask_does_not_repeat_beyond_32_bits_of_counter() -> None:
    out = mf.dropout_relu(torch.ones(NUMEL, device="cuda", dtype=torch.bfloat16), 0.5)
    first, last = out[: 1 << 20], out[1 << 31 :]
    assert 0.49 < (out[-(1 << 20) :] != 0).float().mean().item() < 0.51
    assert not torch.equal(first[: last.numel()], last) or last.numel() < 8
