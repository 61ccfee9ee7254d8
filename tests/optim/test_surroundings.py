"""An optimizer among the rest of PyTorch: schedules, hooks, autograd, modes, shards, graphs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks.launch import needs_gloo
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import megafuse as mf
from optim.cases import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER


def test_closures_schedules_and_hooks() -> None:
    model = nn.Linear(4, 2)
    optimizer = mf.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().sum()
        loss.backward()
        return loss

    first = optimizer.step(closure)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)
    assert optimizer.step(closure) < first
    assert called == ["before", "after"] * 2


def test_grad_scaler_skips_what_overflowed() -> None:
    value = nn.Parameter(torch.ones(3))
    optimizer = mf.optim.AdamW([value], lr=0.1, weight_decay=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, expected in ((float("inf"), 1.0), (1.0, 0.9)):
        optimizer.zero_grad()
        scaler.scale((value * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(value.detach(), torch.full((3,), expected))


def test_autograd_sees_that_a_parameter_changed() -> None:
    value = nn.Parameter(torch.ones(3))
    kept = (value * value).sum()
    value.grad = torch.ones(3)
    mf.optim.SGD([value], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()


class Seen(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_who_watches_sees_it() -> None:
    found = []
    for watch in (Seen(), nullcontext()):  # type: ignore[var-annotated]
        value = nn.Parameter(torch.arange(5.0))
        optimizer = mf.optim.AdamW([value], lr=0.1)
        value.grad = torch.ones(5)
        with watch:
            optimizer.step()
        found.append(value.detach())
    assert torch.equal(*found)
    watch = Seen()
    with watch:
        optimizer.step()
    assert "megafuse.optimizer_step.default" in watch.names


@needs_gloo
def test_who_watches_sees_the_step_of_a_shard() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        value = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
        value.grad = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        watch = Seen()
        with watch:
            mf.optim.SGD([value], lr=0.5).step()
        assert "megafuse.optimizer_step.default" in watch.names
        assert torch.equal(value.full_tensor(), torch.full((4, 3), 0.5))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_diagnose_undoes_a_step() -> None:
    model = nn.Linear(40, 30)
    optimizer = mf.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(8, 40)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    before = [t.clone() for t in (*model.parameters(), *everything_kept(optimizer))]
    mf.diagnose(step, attempt=False)
    assert all(map(torch.equal, (*model.parameters(), *everything_kept(optimizer)), before))


def everything_kept(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for state in optimizer.state.values() for tensor in state.values()]


def test_tensors_without_memory() -> None:
    with FakeTensorMode():
        value = nn.Parameter(torch.ones(3))
        value.grad = torch.ones(3)
        mf.optim.AdamW([value]).step()
    assert value.shape == (3,)


def test_a_cuda_graph_cannot_hold_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    value = nn.Parameter(torch.ones(3))
    value.grad = torch.ones(3)
    for kind in (mf.optim.AdamW, mf.optim.SGD, mf.optim.Lion):
        with pytest.raises(RuntimeError, match="cannot be part of a CUDA graph"):
            kind([value]).step()
    assert torch.equal(value, torch.ones(3))


@pytest.mark.slow
def test_with_an_optimized_model() -> None:
    """The graph's program reads the parameters where they lie: it sees every step."""
    losses = []
    for change, kind in ((mf.optimize, mf.optim.AdamW), (lambda m: m, torch.optim.AdamW)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        model = change(model)
        optimizer = kind(model.parameters(), lr=1e-2)
        x, seen = torch.randn(64, 16), []
        for _ in range(10):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=1e-6)
