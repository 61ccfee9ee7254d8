"""The numerical gate: against the model in float32, the kernel is no worse than eager bfloat16.

Kullback-Leibler divergence and agreement of the likeliest token, over random and repetitive texts,
after caches of 1, 63, 64, 65 and 1023 positions: where pieces of the cache begin and end.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import megafuse as mf
from decode.tiny import make, text

AFTER = {1: 40, 63: 3, 64: 3, 65: 3, 1023: 3}  # length of the cache → positions from there on
TEXTS = 4
SLOWER = [pytest.param(name, marks=pytest.mark.slow) for name in ("llama-3", "qwen3")]


def divergence(found: Tensor, exact: Tensor) -> Tensor:
    """Σ p (log p − log q) of each position."""
    p, q = exact.double().log_softmax(-1), found.double().log_softmax(-1)
    return F.kl_div(q, p, reduction="none", log_target=True).sum(-1)


@pytest.mark.parametrize("kind", ["random", "repetitive"])
@pytest.mark.parametrize("family", ["gpt-2", *SLOWER])
@torch.no_grad()
def test_no_worse_than_eager(family: str, kind: str) -> None:
    exact_model = make(family)
    for parameter in exact_model.parameters():  # both have the same weights
        parameter.copy_(parameter.bfloat16().float())
    model = copy.deepcopy(exact_model).bfloat16()
    decoder = mf.decode.compile(model, max_length=1100)
    ours, eagers, exacts = [], [], []
    for _ in range(TEXTS):
        ids = text(1026, kind)
        exact, eager = (m(ids[None]).logits[0].float() for m in (exact_model, model))
        for cached, count in AFTER.items():
            ours.append(decoder.logits(ids[: cached + count], prefilled=cached))
            exacts.append(exact[cached : cached + count])
            eagers.append(eager[cached : cached + count])
    found, eager, exact = (torch.cat(parts) for parts in (ours, eagers, exacts))
    assert divergence(found, exact).mean() <= divergence(eager, exact).mean()
    best = exact.argmax(-1)
    agreed, eager_agreed = ((x.argmax(-1) == best).float().mean() for x in (found, eager))
    assert agreed >= eager_agreed - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama-3", "gpt-2"])
def test_greedy_text_stays_as_long_as_eagers(family: str) -> None:
    """Equal to float32's text for at least as long as eager bfloat16's is, summed over prompts."""
    exact_model = make(family)
    with torch.no_grad():
        for parameter in exact_model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    model = copy.deepcopy(exact_model).bfloat16()
    decoder = mf.decode.compile(model, max_length=64)
    ours = eagers = 0
    for _ in range(4):
        prompt = text(12)
        exact, eager = (
            m.generate(prompt[None], max_new_tokens=24, do_sample=False)[0, 12:]
            for m in (exact_model, model)
        )
        ours += same_until(decoder.generate(prompt, 24), exact)
        eagers += same_until(eager, exact)
    assert ours >= eagers


def same_until(a: Tensor, b: Tensor) -> int:
    return int((a == b).long().cumprod(0).sum())
