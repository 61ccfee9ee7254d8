"""Attention of captured graphs: our op in place of torch's, and masks that are known to be none.

It is our op on CUDA only; here on any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from megafuse.compiler import attend
from megafuse.compiler.backend import backend
from megafuse.graph import proof
from megafuse.graph.ir import Value

pytestmark = pytest.mark.slow  # each test compiles for seconds


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch, anew: None) -> None:
    monkeypatch.setattr(attend, "DEVICES", ("cpu", "cuda"))


class Attends(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.qkv, self.how = nn.Linear(16, 3 * 16), how

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        if self.how.get("enable_gqa"):
            k, v = k[:, :2], v[:, :2]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.how)
        return out.transpose(1, 2).flatten(2)


REPEATS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "transformers": lambda k, n: (
        k[:, :, None, :, :]
        .expand(k.shape[0], k.shape[1], n, k.shape[2], k.shape[3])
        .reshape(k.shape[0], k.shape[1] * n, k.shape[2], k.shape[3])
    ),
    "unsqueeze": lambda k, n: k.unsqueeze(2).expand(-1, -1, n, -1, -1).flatten(1, 2),
    "interleave": lambda k, n: k.repeat_interleave(n, dim=1),
    "function": lambda k, n: torch.repeat_interleave(k, n, 1),
    "in turn": lambda k, n: k.repeat(1, n, 1, 1),  # head h is k's head h % groups
    "unevenly": lambda k, n: torch.repeat_interleave(
        k, torch.tensor([1, 2 * n - 1], device=k.device), 1, output_size=2 * n
    ),
}
NOT_GROUPS = ("in turn", "unevenly")


@pytest.mark.parametrize("spelling", REPEATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keys_that_groups_share_are_not_repeated(
    spelling: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what our op does not take, as float64, torch is given as it was."""
    seen: list[int] = []

    def noted(q: Tensor, k: Tensor, *rest: Any, **more: Any) -> Tensor:
        seen.append(k.shape[1])
        return attention(q, k, *rest, **more)

    attention = attend.attention
    monkeypatch.setattr(attend, "attention", noted)

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (REPEATS[spelling](t, 3) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, None, 0.0, True)

    how = {"dtype": dtype, "requires_grad": True}
    given = [torch.randn(2, heads, 5, 8, **how) for heads in (6, 2, 2)]
    expected = grouped(*given)
    wanted = torch.autograd.grad(expected.square().sum(), given)
    out = torch.compile(grouped, backend=backend)(*given)
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out.square().sum(), given)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    ours = {6} if spelling in NOT_GROUPS else {2}
    assert set(seen) == (ours if dtype == torch.float32 else set())


@pytest.mark.parametrize(
    ("how", "masked", "ours"),
    [
        ({"is_causal": True, "scale": 0.3}, False, True),
        ({}, False, True),
        ({"enable_gqa": True}, False, True),
        ({}, True, True),
        ({"dropout_p": 0.1}, False, False),
    ],
    ids=["causal", "plain", "groups", "masked", "dropout"],
)
def test_attention_is_our_op(how: dict[str, Any], masked: bool, ours: bool) -> None:
    model, x = Attends(**how), torch.randn(2, 7, 16, requires_grad=True)
    mask = torch.rand(2, 1, 7, 7) > 0.3 if masked else None
    if mask is not None:
        mask[..., 0] = True
    expected = model(x, mask)
    wanted = torch.autograd.grad(expected.square().sum(), (x, *model.parameters()))
    mf.optimize(model)
    out = model(x, mask)
    assert ("megafuse.attention" in str(mf.explain(model))) == ours
    if not ours:
        return
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out.square().sum(), (x, *model.parameters()))
    torch.testing.assert_close(found, wanted)
    other = torch.randn(3, 5, 16)  # of other sizes
    with torch.no_grad():
        found = model(other)
        torch.testing.assert_close(found, mf.deoptimize(model)(other))


def test_a_mask_that_wants_a_gradient_is_torchs() -> None:
    model, x = Attends(), torch.randn(2, 7, 16)
    mask = torch.randn(1, 4, 7, 7, requires_grad=True)
    (wanted,) = torch.autograd.grad(model(x, mask).square().sum(), mask)
    mf.optimize(model)
    (found,) = torch.autograd.grad(model(x, mask).square().sum(), mask)
    torch.testing.assert_close(found, wanted)


def below(n: int) -> Tensor:
    return torch.arange(n)[None, :] <= torch.arange(n)[:, None]


def packed(n: int) -> Tensor:
    """As the transformers library looks for sequences packed into one: there are none."""
    places = torch.arange(n) + 0
    before = torch.cat([places[:1] - 1, places])
    sequence = (before.diff() != 1).cumsum(-1)
    return below(n) & (sequence[torch.arange(n)[:, None]] == sequence[torch.arange(n)[None, :]])


MASKS: dict[str, tuple[Callable[[int], Tensor], str | None]] = {
    "causal": (below, "causal"),
    "turned": (lambda n: torch.arange(n)[:, None] >= torch.arange(n), "causal"),
    "packed": (packed, "causal"),
    "ones": (lambda n: torch.arange(n)[None, :] >= torch.zeros(n, 1, dtype=torch.int64), "all"),
    "strictly": (lambda n: torch.arange(n) < torch.arange(n)[:, None] + 0, None),
    "next": (lambda n: torch.arange(n) <= torch.arange(n)[:, None] + 1, None),
    "window": (lambda n: below(n) & (torch.arange(n) > torch.arange(n)[:, None] - 99), None),
    "backwards": (lambda n: below(n).flip(0), None),
    "first seen by all": (
        lambda n: torch.cat([torch.ones(n, 1, dtype=torch.bool), below(n)[:, 1:]], 1),
        "causal",
    ),
    "first hidden": (
        lambda n: torch.cat([torch.zeros(n, 1, dtype=torch.bool), below(n)[:, 1:]], 1),
        None,
    ),
    "two packed": (
        lambda n: below(n) & ((torch.arange(n) < 3) == (torch.arange(n)[:, None] < 3)),
        None,
    ),
}


class Masked(Attends):
    def __init__(self, mask: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, self.mask(x.shape[1]).expand(x.shape[0], 1, -1, -1))


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
def test_masks_that_are_known(kind: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a mask lets queries see is proven, never guessed; both passes then read none."""
    found = []
    prove = proof.seen

    def noted(mask: Value) -> str | None:
        found.append(prove(mask))
        return found[-1]

    monkeypatch.setattr(proof, "seen", noted)
    mask, expected = MASKS[kind]
    model, x = Masked(mask), torch.randn(2, 7, 16, requires_grad=True)
    with torch.set_grad_enabled(grad):
        wanted = model(x)
        mf.optimize(model)
        out = model(x)
    assert set(found) == {expected}
    torch.testing.assert_close(out, wanted)
    plain = mf.optimize(Attends())
    with torch.set_grad_enabled(grad):
        plain(x)
    kernels = [mf.explain(each).kernels for each in (model, plain)]
    assert (kernels[0] == kernels[1]) == (expected is not None)
    if grad:
        gradients = [
            torch.autograd.grad(y.square().sum(), (x, *model.parameters())) for y in (out, wanted)
        ]
        torch.testing.assert_close(*gradients)
    other = torch.randn(3, 200, 16)
    with torch.no_grad():
        torch.testing.assert_close(model(other), mf.deoptimize(model)(other))
