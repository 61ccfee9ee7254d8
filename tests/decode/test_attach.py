"""model.generate through a decoder: the same text, and the model's own way for the rest."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import megafuse as mf
from decode.tiny import make, text
from megafuse.decode import Decoder, attach


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Decoder, list[int]]:
    """The model, its decoder, and a list that grows with every call that gets there."""
    model = make("llama-3", eos_token_id=5, pad_token_id=0)
    decoder = mf.decode.compile(model, max_length=64, batch=3)
    calls: list[int] = []
    own = decoder._begin

    def begin(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return own(*args, **kwargs)

    monkeypatch.setattr(decoder, "_begin", begin)
    monkeypatch.setattr(attach, "_said", set())
    return model, decoder, calls


def padded() -> dict[str, torch.Tensor]:
    ids = torch.randint(6, 200, (3, 12))
    mask = torch.ones_like(ids)
    ids[1, :4] = mask[1, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_the_same_text(attached: tuple[Any, Decoder, list[int]]) -> None:
    model, decoder, calls = attached
    given = padded()
    expected = model.generate(**given, max_new_tokens=25, do_sample=False)
    decoder.attach()
    found = model.generate(**given, max_new_tokens=25, do_sample=False)
    assert found.tolist() == expected.tolist()
    assert len(calls) == 1
    decoder.detach()
    assert model.generate(**given, max_new_tokens=25, do_sample=False).tolist() == expected.tolist()
    assert len(calls) == 1
    assert "generate" not in vars(model)


def test_sampling_follows_torchs_seed(attached: tuple[Any, Decoder, list[int]]) -> None:
    model, decoder, calls = attached
    decoder.attach(model)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(
            model.generate(
                text(6)[None] * 0 + 7,
                max_new_tokens=20,
                do_sample=True,
                top_k=50,
                temperature=2.0,
            ).tolist()
        )
    assert made[0] == made[1] != made[2]
    assert len(calls) == 3


def test_a_streamer_gets_every_token(attached: tuple[Any, Decoder, list[int]]) -> None:
    model, decoder, _ = attached
    decoder.attach()

    class Streamer:
        def __init__(self) -> None:
            self.got: list[int] = []
            self.ended = False

        def put(self, tokens: torch.Tensor) -> None:
            self.got += tokens.flatten().tolist()

        def end(self) -> None:
            self.ended = True

    streamer, prompt = Streamer(), text(6)[None]
    made = model.generate(prompt, max_new_tokens=9, do_sample=False, streamer=streamer)
    assert streamer.ended
    assert streamer.got[-(made.shape[1] - 6) :] == made[0, 6:].tolist()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"num_beams": 2}, "beams"),
        ({"max_new_tokens": 60}, "cache"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGram"),
        ({"return_dict_in_generate": True}, "return_dict"),
    ],
    ids=str,
)
def test_the_models_own_for_the_rest(
    attached: tuple[Any, Decoder, list[int]],
    asked: dict[str, Any],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, decoder, calls = attached
    asked = {"max_new_tokens": 8, "do_sample": False, **asked}
    given = padded()
    expected = model.generate(**given, **asked)
    decoder.attach()
    with caplog.at_level(logging.WARNING, logger="megafuse"):
        found = model.generate(**given, **asked)
        model.generate(**given, **asked)
    found, expected = (getattr(x, "sequences", x) for x in (found, expected))
    assert found.tolist() == expected.tolist()
    assert not calls
    said = [r.getMessage() for r in caplog.records if "megafuse.decode" in r.getMessage()]
    assert len(said) == 1
    assert why in said[0]


def test_another_models_decoder_is_refused(attached: tuple[Any, Decoder, list[int]]) -> None:
    _, decoder, _ = attached
    with pytest.raises(ValueError, match="another model"):
        decoder.attach(make("llama-3"))
