"""Sampled tokens come as often as transformers' own processors say, and again with a seed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import megafuse as mf
from decode.tiny import VOCAB, make, text
from megafuse.decode import Decoder

DRAWS = 4000


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(1)
    return mf.decode.compile(make("llama-3", vocab_size=40), max_length=40, batch=2, threads=1)


def chances(logits: Tensor, prompt: Tensor, **how: float) -> Tensor:
    """By transformers' logits processors."""
    import transformers as hf

    scores = logits[None].clone()
    if "repetition_penalty" in how:
        scores = hf.RepetitionPenaltyLogitsProcessor(how["repetition_penalty"])(
            prompt[None], scores
        )
    scores = hf.TemperatureLogitsWarper(float(how["temperature"]))(prompt[None], scores)
    if "top_k" in how:
        scores = hf.TopKLogitsWarper(int(how["top_k"]))(prompt[None], scores)
    if "top_p" in how:
        scores = hf.TopPLogitsWarper(how["top_p"])(prompt[None], scores)
    return scores[0].softmax(-1)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 1.0},
        {"temperature": 2.5, "top_k": 5},
        {"temperature": 3.0, "top_p": 0.8},
        {"temperature": 4.0, "top_k": 20, "top_p": 0.6, "repetition_penalty": 1.8},
        {"temperature": 3.0, "repetition_penalty": 0.6},
        {"temperature": 1.0, "top_p": 1e-6},
    ],
    ids=str,
)
def test_as_often_as_they_should(decoder: Decoder, how: dict[str, float]) -> None:
    prompt = torch.randint(40, (10,))
    first = decoder.generate(prompt, 1, seed=0, stop=(), **how)
    expected = chances(decoder.last_logits[0], prompt, **how)
    counts = torch.zeros(40)
    space = decoder._space
    for seed in range(DRAWS):  # the sampling phase alone, as generate runs it for the first token
        space.step["seed"] = seed
        space.seen[0].zero_()[prompt] = 1
        decoder._launch(1, len(decoder.schedule), len(decoder.schedule) - 1, 1)
        counts[space.out[0, 0]] += 1
        assert seed or space.out[0, 0] == first
    assert counts[expected == 0].sum() == 0  # what top-k and top-p leave out never comes
    spread = (DRAWS * expected * (1 - expected)).sqrt().clamp(min=1)
    assert ((counts - DRAWS * expected).abs() < 5 * spread).all()


def test_the_same_seed_is_the_same_text(decoder: Decoder) -> None:
    prompt = torch.randint(40, (6,))
    first = decoder.generate(prompt, 30, temperature=2.0, seed=7)
    assert first.tolist() == decoder.generate(prompt, 30, temperature=2.0, seed=7).tolist()
    assert first.tolist() == list(decoder.stream(prompt, 30, temperature=2.0, seed=7))
    assert first.tolist() != decoder.generate(prompt, 30, temperature=2.0, seed=8).tolist()
    rows = decoder.generate([prompt, prompt], 30, temperature=2.0, seed=7)
    assert rows[0].tolist() == first.tolist()
    assert rows[1].tolist() != first.tolist()  # a row has draws of its own


def test_without_a_seed_torchs_generator_decides(decoder: Decoder) -> None:
    prompt = torch.randint(40, (6,))
    made = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        made.append(decoder.generate(prompt, 30, temperature=2.0).tolist())
    assert made[0] == made[1] != made[2]


def test_penalty_of_greedy_text_is_transformers() -> None:
    model, prompt = make("llama-3"), text(12, "repetitive")
    decoder = mf.decode.compile(model, max_length=64)
    expected = model.generate(
        prompt[None], max_new_tokens=50, do_sample=False, repetition_penalty=1.3
    )[0, 12:]
    assert decoder.generate(prompt, 50, repetition_penalty=1.3).tolist() == expected.tolist()
    assert expected.unique().numel() > 10
    assert VOCAB > 10
