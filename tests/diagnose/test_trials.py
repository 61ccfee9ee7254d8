"""Changes are tried on the operations themselves, checked, and timed; wrong ones get no time."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from megafuse.diagnose import roofs, trials
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.findings import Case, round_trip
from megafuse.diagnose.keep import Keep
from megafuse.diagnose.live import Products
from megafuse.diagnose.observe import observed
from megafuse.diagnose.replay import Part
from megafuse.diagnose.subject import subject
from megafuse.runtime import build, cpp, loader

NAIVE = """
extern "C" void linear_relu(const float* x, const float* w, const float* b, float* out,
                            long rows, long outs, long ins) {
  for (long r = 0; r < rows; ++r)
    for (long o = 0; o < outs; ++o) {
      float sum = b[o];
      for (long i = 0; i < ins; ++i) sum += x[r * ins + i] * w[o * ins + i];
      out[r * outs + o] = sum < 0 ? 0 : sum;
    }
}
"""
needs_a_compiler = pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")


@torch.library.custom_op("diagnose_test::linear_relu", mutates_args=())
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    library = ctypes.CDLL(str(build.cpu_object(NAIVE, "linear_relu")))
    out = x.new_empty(len(x), len(weight))
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (x, weight, bias, out)]
    library.linear_relu(*addresses, *map(ctypes.c_long, (*out.shape, x.shape[1])))
    return out


@needs_a_compiler
def test_the_naive_product_is_tried_against_the_library() -> None:
    x, weight, bias = torch.randn(128, 384), torch.randn(384, 384) / 20, torch.randn(384)
    found = mf.diagnose(linear_relu, x, weight, bias, seconds=20.0)
    finding = found.findings[0]
    assert finding.name == "naive product"
    assert finding.trial is not None
    assert "F.linear and F.relu" in finding.trial.what
    assert not finding.trial.error
    assert finding.trial.times > 1.5
    rate, library = finding.number("its rate"), finding.number("the library's rate")
    assert rate is not None
    assert library is not None
    assert rate < 0.6 * library
    assert "naive product" in str(found)


def rows(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x * 2 + y) * torch.sigmoid(x - y) + x * y


@pytest.mark.skipif(cpp.find() is None or loader.built() is None, reason="needs the host runtime")
def test_a_chain_is_tried_fused() -> None:
    found = mf.diagnose(rows, *torch.randn(2, 1024, 1024), attempt=True)
    notes = " ".join(found.record.notes)
    tried = [f.trial for f in found.findings if f.name == "fusable"]
    assert tried or "fusable" in notes
    for trial in tried:
        assert trial is not None
        assert not trial.error, trial.error
        assert "float64" in trial.accuracy


def round_trips(x: Tensor, y: Tensor) -> list[Tensor]:
    """Three alike and one of another shape, apart from each other."""
    given = (*x.chunk(3), y)
    return [torch.exp(-t.float().square()).bfloat16() for t in given]


@pytest.mark.skipif(cpp.find() is None or loader.built() is None, reason="needs the host runtime")
def test_round_trips_that_are_alike_are_tried_once() -> None:
    x, y = torch.randn(768, 512).bfloat16(), torch.randn(100, 512).bfloat16()
    attempts = attempts_at_round_trips(round_trips, x, y)
    assert [attempt.times for attempt in attempts] == [3, 1]
    for attempt in attempts:
        assert trials._checked(attempt)[0] is None


def attempts_at_round_trips(function: Any, *args: Any) -> list[trials.Attempt]:
    what = subject(function, args, {}, "forward", None)
    record, tape = observed(what, Keep(function, (args, {})), 60.0)
    assert tape is not None
    case = Case(record, roofs.machine("cpu"), Products("cpu"))
    (finding,) = round_trip.find(case)
    return list(trials._round_trip(case, finding, tape))


class Residual(nn.Module):
    """As autocast runs it on a GPU: products in bfloat16, norms in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x + x.bfloat16() @ self.weight.bfloat16(), (64,))


@pytest.mark.skipif(cpp.find() is None or loader.built() is None, reason="needs the host runtime")
@pytest.mark.slow
def test_gradients_of_many_norms_in_a_row_do_not_overflow() -> None:
    """What was saved for them is drawn at random: if large, NaN stood against infinity."""
    model, x = nn.Sequential(*(Residual() for _ in range(24))), torch.randn(32, 64)

    def step() -> list[Tensor]:
        return list(torch.autograd.grad(model(x).square().mean(), list(model.parameters())))

    longest = max(attempts_at_round_trips(step), key=lambda a: len(a.before.inputs))
    assert len(longest.before.inputs) > 40
    with torch.no_grad():
        assert all(t.abs().max() < 1e6 for t in longest.before.function(*longest.before.inputs))


def test_a_change_with_another_result_gets_no_time() -> None:
    part = Part(lambda x: (torch.exp(x),), [torch.randn(64)])
    trial = trials._measured([trials.Attempt("wrong", part, lambda x: (x,))], "cpu")
    assert trial is not None
    assert "wrong result" in trial.error
    assert trial.after == 0.0


def test_a_change_that_fails_says_so() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no such kernel")

    part = Part(lambda x: (torch.exp(x),), [torch.randn(64)])
    trial = trials._measured([trials.Attempt("ours", part, fails)], "cpu")
    assert trial is not None
    assert "ValueError: no such kernel" in trial.error


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, dim=-1) @ v


def test_attention_is_tried_as_one_call() -> None:
    q, k, v = torch.randn(3, 2, 4, 256, 32)
    found = mf.diagnose(attention, q, k, v, seconds=20.0)
    finding = next((f for f in found.findings if f.name == "attention written out"), None)
    if finding is None:  # it was tried and was no faster: then that is noted
        assert "attention written out" in " ".join(found.record.notes)
        return
    assert finding.trial is not None
    assert finding.trial.what == "F.scaled_dot_product_attention"
    assert not finding.trial.error


def test_nothing_is_tried_when_it_is_not_wanted() -> None:
    found = mf.diagnose(rows, *torch.randn(2, 1024, 1024), attempt=False)
    assert all(f.trial is None for f in found.findings)


def test_what_was_tried_is_written(tmp_path: Path) -> None:
    q, k, v = torch.randn(3, 2, 4, 256, 32)
    found = mf.diagnose(attention, q, k, v, seconds=20.0)
    found.write(tmp_path / "a.json")
    assert Diagnosis.read(tmp_path / "a.json").to_dict() == found.to_dict()


@pytest.mark.slow
def test_an_optimizer_is_tried_fused() -> None:
    parameters = [torch.nn.Parameter(torch.randn(16, 16)) for _ in range(100)]
    for parameter in parameters:
        parameter.grad = torch.randn(16, 16)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, foreach=False)
    before = [p.detach().clone() for p in parameters]

    def step() -> None:
        optimizer.step()

    found = mf.diagnose(step, seconds=30.0)
    finding = found.findings[0]
    assert finding.name == "optimizer in a loop"
    assert finding.trial is not None
    assert not finding.trial.error, finding.trial.error
    assert finding.trial.times > 1.5
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
    assert not optimizer.state


@pytest.mark.slow
@pytest.mark.skipif(cpp.find() is None, reason="needs a C++ compiler")
def test_a_module_is_tried_whole_when_asked() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 1024)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return 0.5 * h * (1 + torch.tanh(0.79788 * (h + 0.044715 * h * h * h)))

    model = Block().eval()
    found = mf.diagnose(model, torch.randn(512, 64), attempt=True)
    tried = [f.trial for f in found.findings if f.trial is not None]
    notes = " ".join(found.record.notes)
    assert any(t.what == "megafuse.optimize" for t in tried) or "megafuse.optimize" in notes
    assert model._compiled_call_impl is None
    assert all(not t.error for t in tried)
