"""The check in place of Dynamo's guards, over the models of transformers.

MEGAFUSE_CHECK_GUARDS runs all guards at each call as well, and raises where the check has passed
and they fail.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from families import FAMILIES
from selection import often
from torch import Tensor, nn

import megafuse as mf
from megafuse.compiler.checked import Checks
from megafuse.graph import torch_versions
from megafuse.runtime import cpp

os.environ.setdefault("HF_HUB_OFFLINE", "1")
hf = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("anew"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]


@pytest.fixture(autouse=True)
def debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    hf.logging.set_verbosity_error()
    monkeypatch.setenv("MEGAFUSE_CHECK_GUARDS", "1")


def skip_what_is_tied(name: str) -> None:
    if "T5" in name and torch_versions.GUARDS_LESS:
        pytest.skip("before torch 2.12, tied weights that are arguments stay with Dynamo's guards")


def checks(model: nn.Module) -> Checks:
    found: Checks = model._compiled_call_impl.checks  # type: ignore[union-attr]
    assert found.debugs
    return found


def same(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    torch.testing.assert_close(
        model(**inputs).logits, model._call_impl(**inputs).logits, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", often(FAMILIES, ["GPT-2", "Llama", "T5", "ViT"]))
def test_inference(name: str) -> None:
    skip_what_is_tied(name)
    family = FAMILIES[name]
    model, inputs = mf.optimize(family.make()), family.inputs()
    with torch.no_grad():
        for _ in range(2):
            same(model, inputs)
        noted = checks(model)._left
        for _ in range(3):
            same(model, inputs)
        same(model, {name: each[:3] for name, each in inputs.items()})
        model.train().eval()
        same(model, inputs)
        assert checks(model).calls == 5  # all but the one that captures and the one that notes
        assert checks(model)._left == noted
        model.config.return_dict = False
        assert checks(model).find((), inputs) is None
        model.config.return_dict = True
        assert checks(model).find((), inputs) is not None


@pytest.mark.parametrize("name", often(["GPT-2", "ViT", "BERT", "Llama", "T5"], ["GPT-2", "ViT"]))
def test_training(name: str) -> None:
    skip_what_is_tied(name)
    family = FAMILIES[name]
    model, inputs = mf.optimize(family.make(num_hidden_layers=1).train()), family.inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        same(model, inputs)
        model(**inputs).logits.square().mean().backward()
        optimizer.step()
    assert checks(model).calls == 6
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            same(model, inputs)
    assert checks(model).calls == 7
    model.train()
    same(model, inputs)
    assert checks(model).calls == 8


def test_a_cache_that_grows() -> None:
    """Its length is another at each token, and it is an object that the model changes."""
    model: Any = FAMILIES["GPT-2"].make(bos_token_id=0, eos_token_id=None, pad_token_id=0)
    ids = torch.randint(1, 200, (2, 5))
    how = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = model.generate(ids, **how)
    mf.optimize(model)
    for _ in range(2):
        assert torch.equal(model.generate(ids, **how), expected)
    assert checks(model).calls >= 6
