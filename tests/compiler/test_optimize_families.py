"""mf.optimize of models built otherwise than BERT, GPT-2 and Llama: one graph, the right results.

Of all models that were tried (about 60) these are the cheapest of each kind of architecture.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from families import OTHERS
from nn.rule import check
from torch import Tensor, nn

import megafuse as mf
from megafuse.runtime import cpp

os.environ.setdefault("HF_HUB_OFFLINE", "1")
hf = pytest.importorskip("transformers", reason="needs transformers, of the dev extra")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("anew", "hasty"),
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
]
# The error of one gradient, over eager's, differs between draws: a few are up to 9 times eager's,
# and as many a ninth of it. Over all gradients and draws it is 1. A fault is thousands of times.
BETWEEN_DRAWS = 8.0
OFTEN = ("Mixtral (experts)", "BLOOM (ALiBi)", "ConvNeXt (convolutions)")


def results(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The logits, and the gradient of each parameter."""
    model.zero_grad()
    logits: Tensor = model(**inputs).logits
    probe = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5), device="cpu")
    (logits * probe.to(logits)).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"the logits": logits.detach(), **gradients}


def widened(model: nn.Module) -> nn.Module:
    """In float64, which grouped_mm does not take: experts are multiplied one by one."""
    made: Any = copy.deepcopy(model).double()
    if getattr(type(made), "_can_set_experts_implementation", lambda: False)():
        made.set_experts_implementation("eager")
    return made


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.seldom) for n in OTHERS]
)
def test_logits_and_gradients(name: str) -> None:
    hf.logging.set_verbosity_error()
    eager, inputs = OTHERS[name].make(), OTHERS[name].inputs()
    wide = {k: t.double() if t.is_floating_point() else t for k, t in inputs.items()}
    ours = mf.optimize(copy.deepcopy(eager))
    mine, theirs = results(ours, inputs), results(eager, inputs)
    known = results(widened(eager), wide)
    assert mine.keys() == known.keys()
    for what, exact in known.items():
        room = 1.0 if what == "the logits" else BETWEEN_DRAWS
        check(what, mine[what], theirs[what], exact.cpu(), room=room)
    found = mf.explain(ours)
    assert len(found.graphs) == 1
    assert not found.breaks
    assert not found.graphs[0].not_fused
