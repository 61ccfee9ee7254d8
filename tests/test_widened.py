"""16-bit products in float32, rounded once: as near as PyTorch's own, and in their dtype."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.runtime import loader
from megafuse.runtime.widened import Widened, widened_where_slow


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    """Every product that comes by, and attention with and without a mask."""
    heads = F.linear(x, weight, bias).unflatten(-1, (2, -1)).transpose(1, 2)
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
    return [
        x @ weight.t(),
        torch.bmm(x, x.transpose(1, 2)),
        torch.baddbmm(x[..., :5], x, x.transpose(1, 2)[..., :5]),
        F.scaled_dot_product_attention(heads, heads, heads, is_causal=True),
        F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention", [False, True])
def test_as_near_as_pytorchs(dtype: torch.dtype, attention: bool) -> None:
    given = [t.to(dtype) for t in (torch.randn(2, 7, 16), torch.randn(16, 16), torch.randn(16))]
    exact = layer(*(t.double() for t in given))
    with Widened(attention):
        found = layer(*given)
    for mine, eager, known in zip(found, layer(*given), exact, strict=True):
        assert mine.dtype == dtype
        assert mine.shape == eager.shape
        errors = [(t.double() - known).abs().max() for t in (mine, eager)]
        one = torch.finfo(dtype).eps * known.abs().max()
        assert errors[0] <= 1.5 * errors[1] + one / 2


def test_gradients_pass_through() -> None:
    x = torch.randn(3, 8).bfloat16().requires_grad_()
    weight = torch.randn(8, 8).bfloat16().requires_grad_()
    with Widened():
        found = torch.autograd.grad((x @ weight).square().sum(), [x, weight])
    expected = torch.autograd.grad((x @ weight).square().sum(), [x, weight])
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.5)


def test_only_where_pytorch_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(widened_where_slow(torch.empty(1)), nullcontext)
    host = loader.load()
    if host is None:
        pytest.skip("no host runtime")
    has = host.library_multiplies(torch.bfloat16)
    found = widened_where_slow(torch.empty(1, dtype=torch.bfloat16))
    assert isinstance(found, nullcontext if has else Widened)
    monkeypatch.setattr(loader, "load", lambda: None)
    assert isinstance(widened_where_slow(torch.empty(1, dtype=torch.bfloat16)), nullcontext)
