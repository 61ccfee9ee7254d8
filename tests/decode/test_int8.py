"""int8 weights: what the quantized matrices give in float32, and a quarter of the bytes."""

from __future__ import annotations

import copy

import pytest
import torch

import megafuse as mf
from decode.tiny import make, text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama-tied", "gpt-2"])
@torch.no_grad()
def test_logits_are_those_of_the_rounded_weights(family: str, dtype: torch.dtype) -> None:
    model, ids = make(family, dtype), text(70)
    decoder = mf.decode.compile(model, max_length=70, weights="int8")
    found = decoder.logits(ids)
    exact = dequantized(model)(ids[None]).logits[0]
    close = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert (found - exact).abs().max() < close * float(exact.abs().max())


def dequantized(model: torch.nn.Module) -> torch.nn.Module:
    """In float32, every matrix rounded as int8.py says; embeddings as they are."""
    made = copy.deepcopy(model).float()
    untied = torch.nn.Parameter(made.get_output_embeddings().weight.clone())
    made.get_output_embeddings().weight = untied
    for module in made.modules():
        kind = type(module).__name__
        if kind in ("Linear", "Conv1D"):
            rows = 1 if kind == "Linear" else 0
            scale = module.weight.abs().amax(rows, keepdim=True) / 127
            module.weight.copy_((module.weight / scale).round() * scale)
    return made


def test_fewer_bytes() -> None:
    model = make("llama-3", torch.bfloat16, hidden_size=128)
    whole = mf.decode.compile(model, max_length=8).schedule.bytes
    less = mf.decode.compile(model, max_length=8, weights="int8").schedule.bytes
    assert 0.5 < less / whole < 0.56


def test_the_models_own_weights_are_read_where_they_lie() -> None:
    model = make("llama-3")
    decoder = mf.decode.compile(model, max_length=8)
    layer = decoder._parts.layers[1]
    assert layer.down.weight.data_ptr() == model.model.layers[1].mlp.down_proj.weight.data_ptr()


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="int8"):
        mf.decode.compile(make("llama-3"), max_length=8, weights="int4")
