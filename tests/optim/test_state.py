"""What an optimizer keeps: counted steps, checkpoints, copies."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn

import megafuse as mf
from optim.cases import NEEDS_COMPILER, train

pytestmark = NEEDS_COMPILER


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.float16])
def test_steps_are_counted_in_any_dtype(dtype: torch.dtype) -> None:
    value = nn.Parameter(torch.ones(3))
    optimizer = mf.optim.AdamW([value])
    train(optimizer, [value], 1)
    step = optimizer.state[value]["step"] = torch.tensor(7, dtype=dtype)
    version = step._version
    train(optimizer, [value], 1)
    assert step == 8
    assert step._version > version


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD"])
def test_checkpoints_go_both_ways(name: str) -> None:
    how: dict[str, Any] = {"lr": 0.05} | ({"momentum": 0.9} if name == "SGD" else {})
    ours, theirs = getattr(mf.optim, name), getattr(torch.optim, name)
    results = []
    for first, second in ((ours, theirs), (theirs, ours), (theirs, theirs)):
        torch.manual_seed(0)
        values = [nn.Parameter(torch.randn(50)), nn.Parameter(torch.randn(7, 3))]
        optimizer = first(values, **how)
        train(optimizer, values, 3)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        other = second(values, lr=1.0, **({"momentum": 0.1} if name == "SGD" else {}))
        other.load_state_dict(torch.load(file))
        train(other, values, 3)
        assert other.state_dict().keys() == optimizer.state_dict().keys()
        results.append([*values, *(t for s in other.state.values() for t in s.values())])
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[2])


def test_a_checkpoint_of_a_fused_one_counts_on_the_host() -> None:
    value = nn.Parameter(torch.randn(9))
    fused = torch.optim.AdamW([value], fused=True)
    train(fused, [value], 2)
    kept = fused.state_dict()
    groups = copy.deepcopy(kept["param_groups"])
    ours = mf.optim.AdamW([value])
    ours.load_state_dict(kept)
    assert kept["param_groups"] == groups  # the caller's
    assert not ours.param_groups[0]["fused"]
    assert ours.state[value]["step"].device.type == "cpu"
    train(ours, [value], 1)
    assert ours.state[value]["step"] == 3


def test_a_default_dtype_of_16_bits_counts_on() -> None:
    value = nn.Parameter(torch.randn(3))
    optimizer = mf.optim.AdamW([value])
    train(optimizer, [value], 1)
    optimizer.state[value]["step"] += 299
    kept = optimizer.state_dict()
    torch.set_default_dtype(torch.bfloat16)
    try:
        optimizer.load_state_dict(kept)
    finally:
        torch.set_default_dtype(torch.float32)
    train(optimizer, [value], 1)
    assert optimizer.state[value]["step"] == 301


def test_a_copy_goes_on_by_itself() -> None:
    value = nn.Parameter(torch.randn(5))
    optimizer = mf.optim.AdamW([value])
    train(optimizer, [value], 1)
    other = copy.deepcopy(optimizer)
    inside = other.param_groups[0]["params"]
    train(other, inside, 1)
    assert not torch.equal(inside[0], value)
    assert optimizer.state[value]["step"] == 1
