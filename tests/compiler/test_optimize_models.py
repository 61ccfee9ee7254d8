"""mf.optimize of transformers' models: generate, save, adapters, checkpointing, training.

Small models of random weights: nothing is downloaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from families import FAMILIES
from selection import often
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse as mf
from compiler.placed import here
from megafuse.runtime import cpp, generated

os.environ.setdefault("HF_HUB_OFFLINE", "1")
hf = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "optimize.md"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]


@pytest.fixture(autouse=True)
def quietly(anew: None) -> None:
    hf.logging.set_verbosity_error()


def text(rows: int = 3, cols: int = 8) -> dict[str, Tensor]:
    ids = torch.randint(1, 200, (rows, cols))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def close(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Logits and gradients, against the same model without optimize."""
    found = []
    for call in (model, model._call_impl):
        model.zero_grad()
        logits = call(**inputs).logits
        if torch.is_grad_enabled():
            logits.square().mean().backward()
        found.append([logits, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", often(["GPT-2", "Llama"], ["Llama"]))
def test_generate_with_a_cache_that_grows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = FAMILIES[name].make(bos_token_id=0, eos_token_id=None, pad_token_id=0)
    how = {"max_new_tokens": 10, "do_sample": False}
    prompts = text(), text(2, 5)
    expected = [model.generate(**each, **how) for each in prompts]
    assert mf.optimize(model) is model
    assert torch.equal(model.generate(**prompts[0], **how), expected[0])
    captured = len(mf.explain(model).graphs)
    assert captured <= 3  # the prompt, the first token after it, all others
    if here().type == "cuda":  # for one length, of those that are no whole vectors
        model.generate(**prompts[1], **how)
    monkeypatch.setattr(generated, "kernel", lambda *_: pytest.fail("a kernel is built"))
    for each, tokens in zip(prompts, expected, strict=True):
        assert torch.equal(model.generate(**each, **how), tokens)
    assert len(mf.explain(model).graphs) == captured
    assert not mf.explain(model).breaks


@pytest.mark.parametrize("name", often(["GPT-2", "BERT"], ["GPT-2"]))
def test_other_batches_and_lengths_compile_no_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mf.optimize(FAMILIES[name].make())
    close(model, text())
    if here().type == "cuda":  # of vectors, or where lengths are odd of single elements
        close(model, text(4, 9))
    monkeypatch.setattr(generated, "kernel", lambda *_: pytest.fail("a kernel is built"))
    for rows, cols in ((2, 8), (5, 31), (7, 3)):
        close(model, text(rows, cols))
    assert len(mf.explain(model).graphs) == 1


def test_save_pretrained(tmp_path: Path) -> None:
    model: Any = mf.optimize(FAMILIES["GPT-2"].make())
    inputs = text()
    with torch.no_grad():
        ours = model(**inputs).logits
        model.save_pretrained(tmp_path)
        loaded = hf.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
        assert loaded._compiled_call_impl is None
        torch.testing.assert_close(loaded(**inputs).logits, ours, rtol=1e-4, atol=1e-5)


def test_adapters_of_peft() -> None:
    peft = pytest.importorskip("peft", reason="needs peft, of the dev extra")
    model = mf.optimize(FAMILIES["Llama"].make(num_hidden_layers=1))
    with torch.no_grad():
        close(model, text())
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    close(model, text())
    assert adapted.get_base_model() is model


def test_gradient_checkpointing() -> None:
    model: Any = FAMILIES["Llama"].make(num_hidden_layers=1).train()
    model.gradient_checkpointing_enable()
    close(mf.optimize(model), text())
    assert not any(graph.not_fused for graph in mf.explain(model).graphs)


def test_training_follows_eager() -> None:
    losses = []
    for change in (mf.optimize, mf.deoptimize):
        torch.manual_seed(1)
        model: Any = change(FAMILIES["GPT-2"].make().train())
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        told = []
        for _ in range(20):
            inputs = text(4, 12)
            logits = model(**inputs).logits
            loss = F.cross_entropy(logits.flatten(0, 1), inputs["input_ids"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            told.append(loss.item())
        losses.append(told)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0][-1] < losses[0][0]


def test_the_page_draws_the_block_that_explain_found() -> None:
    if here().type != "cpu":
        pytest.skip("the page's block is a CPU's: attention is another operation elsewhere")
    with torch.no_grad():
        found = mf.explain(FAMILIES["GPT-2"].make(), **text())
    (graph,) = found.graphs
    (block,) = [layer for layer in graph.layers(graph.passes[0]) if layer.path == "transformer.h.0"]
    kernels = sum(step.kind != "library" for step in block.steps)
    drawn = PAGE.read_text(encoding="utf-8")
    calls = len(block.steps) - kernels
    assert f"{block.eager} operations → {kernels} kernels + {calls} library calls" in drawn
    (picture,) = re.findall(r"^after\n(.*?)^```", drawn, re.M | re.S)
    shown = re.findall(r"^  (kernel|library) ", picture, re.M)
    assert shown == ["library" if s.kind == "library" else "kernel" for s in block.steps]
