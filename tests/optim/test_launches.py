"""A step is one launch, without Python for each parameter, and what is not launched is torch's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import megafuse as mf
from megafuse.optim import launch as launching
from megafuse.runtime import builders, fallback, loader, optimizers
from optim.cases import EVERYWHERE, NEEDS_COMPILER, PLAIN, parameters, stepped, train

pytestmark = NEEDS_COMPILER


@EVERYWHERE
def test_one_launch(device: str) -> None:
    values = parameters(torch.float32, device)
    optimizer = mf.optim.AdamW([{"params": values[:4]}, {"params": values[4:], "lr": 0.1}])
    for value in values:
        value.grad = torch.randn_like(value)
    optimizer.step()
    host: Any = loader.load()
    before = host.launch_count()
    optimizer.step()
    assert host.launch_count() - before == 1


def test_dtypes_side_by_side() -> None:
    values = [nn.Parameter(torch.ones(5, dtype=dtype)) for dtype in (torch.float, torch.double) * 2]
    values.append(nn.Parameter(torch.ones(5, dtype=torch.complex64)))
    optimizer = mf.optim.SGD(values, lr=0.5)
    for value in values:
        value.grad = torch.ones_like(value)
    host: Any = loader.load()
    before = host.launch_count()
    optimizer.step()
    assert host.launch_count() - before == 2
    assert all(torch.equal(value, torch.full_like(value, 0.5)) for value in values)


@PLAIN
def test_python_does_nothing_for_each_parameter(name: str, how: dict[str, Any]) -> None:
    """From the second step on: the host's time must not grow with them by more than C++ takes."""
    calls = []
    for many in (4, 40):
        values = [nn.Parameter(torch.ones(2)) for _ in range(many)]
        groups = [{"params": values[: many // 2]}, {"params": values[many // 2 :], "lr": 0.1}]
        optimizer = getattr(mf.optim, name)(groups, **how)
        train(optimizer, values, 2)
        calls.append(calls_of(optimizer.step))
    assert calls[0] == calls[1]


def calls_of(function: Callable[[], Any]) -> int:
    """How many functions it calls, Python's and built-in ones."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


def test_a_dtype_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' steps are launched, and none is done twice."""

    def not_double(rule: str, dtype: str) -> Any:
        if dtype == "Double":
            raise fallback.Unbuildable("not here")
        return optimizers.cpu_kernel(rule, dtype)

    host: Any = loader.load()
    monkeypatch.setitem(builders._ON_CPU, "optimizer", not_double)
    host.forget_kernels()
    try:
        values = [nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5, dtype=torch.double))]
        values.append(nn.Parameter(torch.ones(5, 4)[:, 0]))
        optimizer = mf.optim.AdamW(values, lr=0.5, weight_decay=0)
        before = host.launch_count()
        train(optimizer, values, 1)
        assert host.launch_count() - before == 1
    finally:
        host.forget_kernels()
    assert all(torch.allclose(value, torch.full_like(value, 0.5)) for value in values)
    assert [state["step"] for state in optimizer.state.values()] == [1, 1, 1]


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lion"])
def test_without_a_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"lr": 0.1}
    expected = stepped(getattr(mf.optim, name), how, torch.float32)
    monkeypatch.setattr(launching.loader, "load", lambda: None)
    found = stepped(getattr(mf.optim, name), how, torch.float32)
    torch.testing.assert_close(found, expected)
