"""Dropout: in training only, with the probability that was asked for, wherever torch has it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import megafuse.nn as fused

P = 0.4
WIDTH = 64


def first(value):
    return value[0] if isinstance(value, tuple) else value


def identity() -> nn.Linear:
    linear = nn.Linear(WIDTH, WIDTH, bias=False)
    nn.init.eye_(linear.weight)
    return linear


MODULES = {
    "ResidualLayerNorm": lambda: fused.ResidualLayerNorm(WIDTH, dropout=P),
    "ResidualRMSNorm": lambda: fused.ResidualRMSNorm(WIDTH, dropout=P),
    "FFN": lambda: fused.FFN(WIDTH, 96, dropout=P),
    "FFN-hidden": lambda: fused.FFN(WIDTH, 96, activation="relu", hidden_dropout=P),
    "SwiGLUFFN": lambda: fused.SwiGLUFFN(WIDTH, 96, dropout=P),
    "Attention": lambda: fused.Attention(WIDTH, 2, dropout=P),
    "pre-norm": lambda: fused.TransformerBlock(WIDTH, 2, 96, dropout=P, norm_first=True),
    "post-norm": lambda: fused.TransformerBlock(WIDTH, 2, 96, dropout=P, activation="gelu"),
    "Sequential": lambda: fused.Sequential(
        nn.Linear(WIDTH, 96), nn.GELU(), nn.Dropout(P), nn.Linear(96, WIDTH), nn.Dropout(P)
    ),
}
each = pytest.mark.parametrize("make", MODULES.values(), ids=list(MODULES))


def call(module: nn.Module, x: Tensor) -> Tensor:
    residual = isinstance(module, (fused.ResidualLayerNorm, fused.ResidualRMSNorm))
    return first(module(x, x) if residual else module(x))


@each
def test_only_in_training(make, device: str) -> None:
    module, x = make().to(device), torch.randn(5, 7, WIDTH, device=device)
    assert not torch.equal(call(module, x), call(module, x))
    module.eval()
    assert torch.equal(call(module, x), call(module, x))
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.train()  # as Monte Carlo dropout does
    dropouts = any(isinstance(part, nn.Dropout) for part in module.modules())
    assert torch.equal(call(module, x), call(module, x)) == (not dropouts)


@each
def test_seed_repeats_it(make, device: str) -> None:
    module, x = make().to(device), torch.randn(5, 7, WIDTH, device=device)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        results.append(call(module, x))
    assert torch.equal(*results)


@pytest.mark.slow
@each
def test_mean_is_kept(make, device: str) -> None:
    """Many passes in training average to one in eval, about (norms and attention bend it)."""
    module = make().to(device, torch.float64)
    x = torch.randn(4, 6, WIDTH, device=device, dtype=torch.float64)
    with torch.no_grad():
        mean = torch.stack([call(module, x) for _ in range(400)]).mean(0)
        expected = call(module.eval(), x)
    bent = (mean - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert bent < 0.25


@pytest.mark.slow
@each
def test_trains(make, device: str) -> None:
    module, x = make().to(device), torch.randn(5, 7, WIDTH, device=device, requires_grad=True)
    call(module, x).square().sum().backward()
    assert x.grad.isfinite().all()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_what_is_dropped() -> None:
    """Zeros with probability p, the rest divided by 1 − p: after linear2, or before it."""
    x = torch.rand(200, WIDTH) + 1
    outer = fused.FFN.from_torch(identity(), "relu", identity(), dropout=P)
    hidden = fused.FFN.from_torch(identity(), "relu", identity(), hidden_dropout=P)
    for module in (outer, hidden):
        out = module(x)
        zero = out == 0
        assert abs(zero.float().mean().item() - P) < 0.03
        torch.testing.assert_close(out[~zero], x[~zero] / (1 - P))
        residual = torch.randn_like(x)
        out = module(x, residual)
        zero = (out - residual).abs() < 1e-4
        assert abs(zero.float().mean().item() - P) < 0.03


def test_p_of_one_and_nothing() -> None:
    x = torch.randn(5, WIDTH)
    made = fused.ResidualLayerNorm(WIDTH, dropout=1.0)
    torch.testing.assert_close(made(torch.randn(5, WIDTH), x)[1], x)
    made = fused.TransformerBlock(WIDTH, 2, 96, dropout=0.0, norm_first=True)
    assert torch.equal(made(x), made(x))
