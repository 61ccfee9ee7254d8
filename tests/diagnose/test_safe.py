"""Safe on anything: what calls change is put back, and what fails says so."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import megafuse as mf
from megafuse.diagnose.limit import TookTooLong, time_limit
from megafuse.diagnose.subject import Refused
from megafuse.runtime import progress

SHORT = {"seconds": 10.0, "attempt": False}


def diagnose(function: Any, *args: Any, **kwargs: Any) -> Any:
    return mf.diagnose(function, *args, **{**SHORT, **kwargs})


# ---- state


def test_arguments_that_are_changed_are_put_back() -> None:
    x = torch.arange(12.0).reshape(3, 4)

    def change(t: Tensor) -> Tensor:
        t[:, 1] += 1
        t.t().mul_(2)
        return t.sum()

    diagnose(change, x)
    assert torch.equal(x, torch.arange(12.0).reshape(3, 4))


def test_buffers_and_training_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    buffer = model[1].running_mean

    def step(x: Tensor) -> Tensor:
        model.eval()
        model.train()
        model[1].running_var = torch.ones(4) * 3
        model[2].eval()
        out: Tensor = model(x)
        return out

    diagnose(step, torch.randn(8, 4))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model[1].running_mean is buffer
    assert model[2].training


def test_gradients_are_put_back() -> None:
    model = nn.Linear(4, 4)
    model.weight.grad = torch.ones(4, 4)
    kept = model.weight.grad
    diagnose(lambda: model(torch.ones(2, 4)).sum().backward())
    assert model.weight.grad is kept
    assert torch.equal(kept, torch.ones(4, 4))
    assert model.bias.grad is None


def test_a_backward_of_ours_leaves_gradients_as_they_were() -> None:
    model = nn.Linear(4, 4)
    x = torch.ones(2, 4, requires_grad=True)
    diagnose(model, x, mode="backward")
    assert model.weight.grad is None
    assert x.grad is None


def test_a_training_step_is_undone() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()

    diagnose(step)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert scheduler.last_epoch == 0


def test_random_generators_are_put_back() -> None:
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    wanted = torch.rand(3), random.random(), numpy.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)

    def step() -> Tensor:
        random.random()
        numpy.random.rand()
        return torch.rand(8)

    diagnose(step)
    got = torch.rand(3), random.random(), numpy.random.rand()
    assert torch.equal(got[0], wanted[0])
    assert got[1:] == wanted[1:]


def test_grad_mode_is_put_back() -> None:
    def step() -> Tensor:
        torch.set_grad_enabled(False)
        return torch.ones(2) + 1

    diagnose(step)
    assert torch.is_grad_enabled()


# ---- what fails


def test_a_callable_that_raises_raises_its_own_error_and_is_undone() -> None:
    x = torch.zeros(4)

    def fails(t: Tensor) -> Tensor:
        t += 1
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        diagnose(fails, x)
    assert torch.equal(x, torch.zeros(4))


def test_one_that_never_returns_is_stopped() -> None:
    x = torch.zeros(4)

    def forever(t: Tensor) -> None:
        t += 1
        while True:
            time.sleep(0.01)

    begun = time.perf_counter()
    with pytest.raises(TookTooLong, match=r"forever took longer than 0\.5 seconds"):
        diagnose(forever, x, seconds=0.5)
    assert time.perf_counter() - begun < 5
    assert torch.equal(x, torch.zeros(4))


def test_without_a_gradient_there_is_no_backward() -> None:
    with pytest.raises(Refused, match="nothing that has a gradient"):
        diagnose(torch.exp, torch.ones(3), mode="backward")


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (nn.Linear, "Linear is a class"),
        (3, "a int cannot be called"),
    ],
)
def test_what_cannot_be_called_is_refused(thing: Any, says: str) -> None:
    with pytest.raises(Refused, match=says):
        diagnose(thing)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Refused, match="expected one of forward, backward"):
        diagnose(torch.exp, torch.ones(3), mode="sideways")


# ---- kinds of callables


def test_torchscript() -> None:
    scripted = torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))
    found = diagnose(scripted, torch.ones(2, 4))
    assert any(op.kind == "product" for op in found.record.operations)


def test_an_exported_program() -> None:
    exported = torch.export.export(nn.Linear(4, 4), (torch.ones(2, 4),))
    with pytest.raises(Refused, match=r"program\.module\(\)"):
        diagnose(exported, torch.ones(2, 4))
    found = diagnose(exported.module(), torch.ones(2, 4))
    assert any(op.kind == "product" for op in found.record.operations)


def test_a_compiled_module_keeps_what_it_compiled() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), backend="aot_eager")
    x = torch.randn(8, 4)
    model(x)
    norm = model._orig_mod[1]
    mean = norm.running_mean.clone()
    found = diagnose(model, x)
    assert found.record.compiled
    assert found.record.recompiled == 0
    assert torch.equal(norm.running_mean, mean)


def test_keyword_arguments_and_nested_results() -> None:
    def both(x: Tensor, *, scale: float) -> dict[str, Any]:
        return {"a": x * scale, "b": [x + scale]}

    found = diagnose(both, torch.ones(4), scale=2.0)
    assert len(found.record.operations) == 2


def test_a_call_without_operations() -> None:
    found = diagnose(lambda: 1)
    assert found.verdict.leave_it
    assert not found.record.operations


def test_no_elements() -> None:
    found = diagnose(lambda x: torch.exp(x) + 1, torch.ones(0, 4))
    assert found.verdict.leave_it


def test_other_threads() -> None:
    """A call that uses a pool: its operations are not in this thread, and still take time."""
    from concurrent.futures import ThreadPoolExecutor

    x = torch.randn(256, 256)
    with ThreadPoolExecutor(2) as pool:
        found = diagnose(lambda: list(pool.map(torch.exp, [x] * 4)))
    assert found.record.seconds > 0


def test_sparse_tensors_and_complex_numbers() -> None:
    sparse = torch.eye(16).to_sparse()
    found = diagnose(lambda: torch.sparse.mm(sparse, torch.ones(16, 4)))
    assert found.record.operations
    assert diagnose(torch.fft.fft, torch.randn(64)).record.operations
    rows = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    assert diagnose(lambda: rows * 2).record.operations


def test_without_memory_for_a_copy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where neither the device nor the host has room for what is about to be written to."""

    def full(self: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    def change(t: Tensor) -> Tensor:
        return t.add_(1)

    x = torch.zeros(4)
    monkeypatch.setattr(Tensor, "clone", full)
    monkeypatch.setattr(Tensor, "cpu", full)
    found = diagnose(change, x)
    assert any("has no copy" in note for note in found.record.notes)


def test_compiling_inside_a_call_does_not_count_against_the_limit() -> None:
    def slow_backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        time.sleep(2.0)
        return graph.forward

    torch._dynamo.reset()
    inner = torch.compile(torch.tanh, backend=slow_backend)

    def step(x: Tensor) -> Tensor:
        return inner(x)

    with time_limit(0.5, "step", or_exit=True):
        step(torch.randn(8))
    assert mf.diagnose(step, torch.randn(8), seconds=1.0, attempt=False).record.seconds < 1.0


def test_a_stop_is_said_as_such_whoever_caught_it() -> None:
    def wraps(x: Tensor) -> None:
        try:
            time.sleep(30)
        except Exception as error:
            raise ValueError("something of mine failed") from error

    with pytest.raises(TookTooLong, match=r"wraps took longer than 0\.5 seconds"):
        mf.diagnose(wraps, torch.zeros(4), seconds=0.5)


def test_our_own_compiling_does_not_count_against_the_limit() -> None:
    with time_limit(0.3, "step", or_exit=True), progress.compiling("something long"):
        time.sleep(1.0)
    assert not progress.compiles()
    with pytest.raises(TookTooLong), time_limit(0.3, "step"):
        time.sleep(1.0)
