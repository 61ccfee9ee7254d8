"""Calls that PyTorch's dispatcher does not see: found by Python's own hook, with their tensors."""

from __future__ import annotations

import cProfile
import sys
import time
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import megafuse as mf
from megafuse.diagnose import native
from megafuse.diagnose.native import Natives
from megafuse.diagnose.watch import Watch


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """`repr` stands for a user's C++ function, and `id` for another."""
    monkeypatch.setattr(
        native, "_kind", lambda f: "extension" if getattr(f, "__name__", "") == "id" else ""
    )
    monkeypatch.setattr(native, "_SHORTEST", 0.0)


def watched(function: Any) -> list[native.Native]:
    watch = Watch(None)
    natives = Natives(watch)
    with watch, natives:
        function()
    return natives.calls


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2))

    def forward(self, x: Tensor) -> int:
        return id(self.weight) + id(
            x,
        )


@pytest.mark.usefixtures("kernel")
def test_tensors_are_found_by_their_names() -> None:
    layer, x = Layer(), torch.ones(4, 2)
    first, second = watched(lambda: layer(x))
    assert first.tensors[0] is layer.weight
    assert second.tensors[0] is x
    assert first.where.function.endswith("forward")
    assert first.function is id


@pytest.mark.usefixtures("kernel")
def test_what_would_have_to_be_run_is_not() -> None:
    made = []

    def make() -> Tensor:
        made.append(1)
        return torch.ones(2)

    (call,) = watched(lambda: id(make()))
    assert made == [1]
    assert call.tensors == []
    assert call.function is None


def test_the_hook_is_given_back() -> None:
    before = sys.getprofile()
    watched(lambda: 1)
    assert sys.getprofile() is before


def test_python_s_profiler_goes_on() -> None:
    profile = cProfile.Profile()
    profile.enable()
    watched(lambda: 1)
    abs(-1)
    profile.disable()
    assert any("abs" in str(entry.code) for entry in profile.getstats())


class Files(Dataset[Tensor]):
    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(1e-3)
        return torch.full((16,), float(index))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_loader_is_waited_for(workers: int) -> None:
    loader = iter(DataLoader(Files(), batch_size=8, num_workers=workers))
    found = mf.diagnose(lambda: next(loader).sum(), attempt=False)
    finding = found.findings[0]
    assert finding.name == "waits for data"
    assert finding.where.file == __file__
    assert found.record.seconds > 4e-3


class Drawn(Dataset[Tensor]):
    """Each sample takes its own number of operations, which is another one every time."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> Tensor:
        x = torch.ones(64)
        for _ in range(20 + index * 7 % 13):
            x = x * 1.5
        return x


def test_operations_of_a_loader_are_its_own() -> None:
    loader = iter(DataLoader(Drawn(), batch_size=32))
    found = mf.diagnose(lambda: next(loader).sum(), attempt=False)
    finding = found.findings[0]
    assert finding.name == "waits for data"
    assert len(finding.operations) >= 32 * 20
    assert finding.gain > 0.5 * found.record.seconds


def test_printing_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(64, 64)
    found = mf.diagnose(lambda: print(x.sum().item()), attempt=False)
    assert found.record.operations
    assert capsys.readouterr().out


def test_a_line_that_runs_no_operation_is_named() -> None:
    """NumPy's functions do not show in Python's hook: the line is found by looking."""
    a = numpy.random.default_rng(0).random((300, 300))
    x = torch.randn(8, 8)

    def step() -> Tensor:
        for _ in range(3):
            numpy.linalg.inv(a)
        return x + 1

    finding = mf.diagnose(step, attempt=False).findings[0]
    assert finding.name == "work outside PyTorch"
    assert finding.where.text == "numpy.linalg.inv(a)"
