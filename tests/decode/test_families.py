"""Every family: the kernel's logits are the model's own, and so is the text."""

from __future__ import annotations

import pytest
import torch

import megafuse as mf
from decode.tiny import FAMILIES, make, text

# Their angles depend on how long the text is, so one forward pass is not what generate does.
CHANGING = {"dynamic-rope", "phi-3-long"}


# Texts of the rest are slow; their logits are not.
QUICK = ("gpt-2", "llama-3", "phi-3-long", "qwen3")


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=() if f in QUICK else pytest.mark.slow) for f in FAMILIES],
)
def test_text_is_transformers(family: str) -> None:
    """80 tokens: past every window and every length where angles change."""
    model, prompt = make(family), text(20)
    decoder = mf.decode.compile(model, max_length=100)
    expected = model.generate(prompt[None], max_new_tokens=80, do_sample=False)[0, 20:]
    assert decoder.generate(prompt, 80).tolist() == expected.tolist()


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in CHANGING])
@torch.no_grad()
def test_logits_are_the_models(family: str) -> None:
    model, ids = make(family), text(90)
    decoder = mf.decode.compile(model, max_length=90)
    expected = model(ids[None]).logits[0]
    scale = float(expected.abs().max())
    assert (decoder.logits(ids) - expected).abs().max() < 1e-5 * scale
    after_prefill = decoder.logits(ids, prefilled=70)
    assert (after_prefill - expected[70:]).abs().max() < 1e-5 * scale


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    model, ids = make("llama-3"), text(70)
    one = mf.decode.compile(model, max_length=70, threads=1).logits(ids)
    assert torch.equal(mf.decode.compile(model, max_length=70, threads=threads).logits(ids), one)


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_rows_of_any_lengths_do_not_see_each_other(rows: int) -> None:
    model = make("mistral")
    prompts = [text(3 + 5 * i) for i in range(rows)]
    decoder = mf.decode.compile(model, max_length=80, batch=8)
    together = decoder.generate(prompts, 30)
    assert together.shape == (rows, 30)
    for prompt, made in zip(prompts, together, strict=True):
        assert decoder.generate(prompt, 30).tolist() == made.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["llama-3", "gpt-2"])
def test_other_dtypes(family: str, dtype: torch.dtype) -> None:
    """Held against the same weights in float32, of which the cache alone is rounded."""
    model, ids = make(family, dtype), text(70)
    found = mf.decode.compile(model, max_length=70).logits(ids)
    with torch.no_grad():
        exact = model.float()(ids[None]).logits[0]
    step = torch.finfo(dtype).eps
    assert (found - exact).abs().max() < 4 * step * float(exact.abs().max())
