"""Every rule and dtype, held against torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import megafuse as mf
from megafuse.runtime import loader
from optim.cases import EACH, EVERYWHERE, NEEDS_COMPILER, of_torch, stepped

pytestmark = NEEDS_COMPILER
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)


@EVERYWHERE
@EACH
@DTYPES
def test_as_torchs(name: str, how: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    """In float32 inside, so as near to float64 as torch's in the same dtype, or nearer."""
    exact = stepped(of_torch(name), how, torch.float64)
    before = loader.load().launch_count()  # type: ignore[union-attr]
    ours = stepped(getattr(mf.optim, name), how, dtype, device)
    launched = loader.load().launch_count() - before  # type: ignore[union-attr]
    assert launched >= 6
    theirs = stepped(of_torch(name), how, dtype, device)
    eps = torch.finfo(dtype).eps
    for mine, known, right in zip(ours, theirs, exact, strict=True):
        assert mine.shape == right.shape
        if not right.numel():
            continue
        off = (mine.detach().cpu().double() - right.detach()).abs()
        # Torch's float16 divides by an eps that is 0: Inf there tells nothing.
        room = (known.detach().cpu().double() - right.detach()).abs().nan_to_num(1e3).max()
        unit = eps * right.detach().abs().clamp(min=1)
        allowed = 2 * room + 8 * unit
        if name == "Lion" and dtype != torch.float64:  # a sign near zero may turn
            assert (off > allowed).double().mean() <= 0.02
            allowed = allowed + 2 * 6 * 3e-2
        assert (off <= allowed).all(), f"{tuple(right.shape)} off by {off.max()}"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.0])
@EACH
def test_special_values(name: str, how: dict[str, Any], value: float) -> None:
    found = []
    for kind in (getattr(mf.optim, name), of_torch(name)):
        parameter = nn.Parameter(torch.tensor([1.0, -2.0, 0.0, value]))
        optimizer = kind([parameter], **how)
        for _ in range(2):
            parameter.grad = torch.tensor([value, 0.0, value, 1.0])
            optimizer.step()
        found.append([parameter.detach(), *optimizer.state[parameter].values()])
    torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int) -> None:
    before = torch.get_num_threads()
    found = []
    for count in (1, threads):
        torch.set_num_threads(count)
        value = nn.Parameter(torch.linspace(-1, 1, 200_003))
        optimizer = mf.optim.AdamW([value], lr=0.1)
        for _ in range(3):
            value.grad = torch.cos(value.detach() * 50)
            optimizer.step()
        found.append(value.detach())
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_a_rate_that_is_a_tensor() -> None:
    found = []
    for rate in (0.25, torch.tensor(0.25)):
        value = nn.Parameter(torch.ones(3))
        optimizer = mf.optim.Lion([value], lr=rate)
        value.grad = torch.ones(3)
        optimizer.step()
        found.append(value.detach())
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"lr": -1.0}, "lr must be 0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas must be in \[0, 1\)"),
        ({"weight_decay": float("nan")}, "weight_decay must be 0 or more"),
    ],
)
def test_what_lion_refuses(how: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mf.optim.Lion([nn.Parameter(torch.ones(2))], **how)
