"""50 training steps of an optimized model, beside eager's: benchmarks/loss_curves.py, tiny."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from contract.eager import eagerly
from families import FAMILIES
from selection import often
from torch import Tensor

import megafuse as mf
from compiler.placed import here
from megafuse.bench.models.case import Case
from megafuse.compiler.optimize import optimized
from megafuse.runtime import cpp

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "loss_curves.py"
needs_models = pytest.mark.skipif(
    cpp.find() is None or importlib.util.find_spec("transformers") is None,
    reason="no C++ compiler, or no transformers",
)
# Of eager's spread, the two curves of a seed: measured were up to 0.013 in float32 (Llama; of the
# others 5e-5). In bfloat16 single weights jump now or a step later: the means are compared there.
SAME_SEED = 0.1
MODELS = ("bert", "gpt2", "llama", "vit")


@pytest.fixture
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("loss_curves", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclass looks itself up
    found.loader.exec_module(module)
    train = module.trained

    def trained(training: Any, *more: Any) -> Any:
        return (train if optimized(training) else eagerly(train))(training, *more)

    module.trained = trained  # type: ignore[attr-defined]
    return module


def tiny(model: str, dtype: str) -> Case:
    return Case(model, dtype, "train", here().type, tiny=True)


@needs_models
@pytest.mark.slow
@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", often(MODELS, ["gpt2"]))
def test_inside_eagers_spread(model: str, dtype: str, script: ModuleType) -> None:
    found = script.compared(tiny(model, dtype), seeds=6, rate=1e-3)
    assert all(curve[-1] < 0.7 * curve[0] for curve in found.ours)
    assert found.apart <= 1, script.shown(found)
    if dtype == "float32":
        assert found.of_a_seed <= SAME_SEED, script.shown(found)


@needs_models
@pytest.mark.slow
@pytest.mark.parametrize("dtype", often(["float32", "bfloat16"], ["bfloat16"]))
def test_lost_gradients_are_outside(
    dtype: str, script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one matrix in float32, which moves the mean by half a spread only; else of a layer."""
    lost = "h.1.attn.c_proj.weight" if dtype == "float32" else "h.1."

    def lose(training: Any) -> Any:
        for name, parameter in training.named_parameters():
            if lost in name:
                parameter.register_hook(torch.zeros_like)
        return training

    monkeypatch.setattr(script.mf, "optimize", lose)
    found = script.compared(tiny("gpt2", dtype), seeds=6, rate=1e-3)
    if dtype == "float32":
        assert found.of_a_seed > SAME_SEED, script.shown(found)
    else:
        assert found.apart > 1, script.shown(found)


def test_what_is_inside(script: ModuleType) -> None:
    """The mean counts at every step, in spreads of that step."""
    eager = [[3.0, 2.0], [5.0, 2.2]]  # spreads of 1.41 and 0.141
    found = script.Compared("made", "float32", [1, 1], eager, [[4.0, 2.0], [5.0, 2.2]])
    assert found.apart == pytest.approx(0.5 / 2**0.5)
    assert found.of_a_seed == pytest.approx(1 / 2**0.5)
    later = script.Compared("made", "float32", [1, 1], eager, [[3.0, 2.2], [5.0, 2.4]])
    assert later.apart == pytest.approx(2**0.5)
    assert "OUTSIDE" in script.shown(later)


@needs_models
@pytest.mark.slow
@pytest.mark.usefixtures("anew")
def test_the_command_keeps_all_curves(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "curves.json"
    told = ["--model", "gpt2", "--dtype", "float32", "--tiny", "--steps", "2", "--seeds", "2"]
    where = ["--device", here().type]
    monkeypatch.setattr(sys, "argv", ["loss_curves.py", *told, *where, "--record", str(file)])
    assert script.main() == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert row["model"] == "gpt2"
    assert [len(curve) for curve in (*row["eager"], *row["ours"])] == [2] * 4
    assert row["apart"] <= 1


@needs_models
@pytest.mark.slow
@pytest.mark.usefixtures("anew")
def test_dropout_is_inside_eagers_spread() -> None:
    """Ours draws other numbers: from the same weights and batches, curves differ as eager's do
    from seed to seed."""
    seeds = 8
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 200, (2, 4, 16), generator=random, device="cpu").to(here())
    rates = {f"{part}_pdrop": 0.2 for part in ("resid", "embd", "attn")}
    model: Any = FAMILIES["GPT-2"].make(**rates).train()
    begun = {name: value.clone() for name, value in model.state_dict().items()}
    curves = []
    for change in (mf.deoptimize, mf.optimize):
        change(model)
        for seed in range(seeds):
            model.load_state_dict(begun)
            torch.manual_seed(seed)
            curves.append(trained(model, ids))
    eager, ours = torch.tensor(curves, dtype=torch.float64).view(2, seeds, -1)
    # Of two means of 8, the difference has half a spread; of 50 steps the largest has about 3.
    gap = (ours.mean(0) - eager.mean(0)).abs()
    assert (gap <= 2 * eager.std(0)).all(), gap / eager.std(0)
    assert gap.mean() <= eager.std(0).mean()
    assert (ours.std(0).mean() / eager.std(0).mean()).log2().abs() <= 1


def trained(model: Any, batches: Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(50):
        ids = batches[step % len(batches)]
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
