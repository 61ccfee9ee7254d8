"""Results against fp64: as accurate as eager, or a few units in the last place."""

from __future__ import annotations

import torch
from contract.rules import same_class
from torch import Tensor

FEW = 4.0  # ulps that are always allowed
FACTOR = 2.0  # times eager's worst error


def check(
    what: str, got: Tensor, eager: Tensor, exact: Tensor, few: float = FEW, least: float = 0
) -> None:
    """`exact` is in fp64, from the same inputs; no unit is taken at less than `least`."""
    assert got.dtype == eager.dtype, f"{what}: {got.dtype}, expected {eager.dtype}"
    if not got.is_floating_point():
        wrong = got != eager
        assert not wrong.any(), (
            f"{what}: {int(wrong.sum())} differ, {got[wrong][:4].tolist()} where eager has "
            f"{eager[wrong][:4].tolist()}"
        )
        return
    same_class(what, got, eager, exact)
    ours, theirs = (_ulps(t, exact, got.dtype, least) for t in (got, eager))
    allowed = FACTOR * theirs.max().item() + few if got.numel() else 0.0
    worst = ours.max().item() if got.numel() else 0.0
    assert worst <= allowed, (
        f"{what}: off by {worst:.1f} ulps at {got.flatten()[ours.argmax()].item()}, eager by "
        f"{theirs.max().item():.1f}"
    )


def _ulps(got: Tensor, exact: Tensor, dtype: torch.dtype, least: float) -> Tensor:
    """Errors in units of the last place of `dtype`, 0 where the exact result is none of it."""
    info = torch.finfo(dtype)
    exact = exact.double()
    fits = exact.isfinite() & got.isfinite() & (exact.abs() <= info.max)
    exponent = torch.frexp(exact.abs().clamp(min=max(info.tiny, least))).exponent - 1
    unit = torch.ldexp(torch.full_like(exact, info.eps), exponent)
    error = (got.double() - exact).abs() / unit
    return torch.where(fits, error, torch.zeros_like(error)).flatten()
