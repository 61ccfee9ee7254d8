"""Prompts, ends, texts that go on, and what is refused."""

from __future__ import annotations

import sys

import pytest
import torch

import megafuse as mf
from decode.tiny import VOCAB, make, text
from megafuse.decode import CacheFull, Decoder


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    return mf.decode.compile(make("llama-3"), max_length=64, batch=3)


def test_importing_megafuse_imports_no_transformers() -> None:
    import subprocess

    code = "import sys, megafuse; megafuse.decode; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_stream_is_generate(decoder: Decoder) -> None:
    prompt = text(9)
    whole = decoder.generate(prompt, 37)  # more than a launch makes
    assert list(decoder.stream(prompt, 37)) == whole.tolist()
    rows = decoder.generate([prompt, text(4)], 20)
    assert [row[0] for row in decoder.stream([prompt, text(4)], 20)] == rows[0].tolist()


def test_shapes_of_prompts(decoder: Decoder) -> None:
    prompt = text(5)
    made = decoder.generate(prompt, 4)
    assert made.shape == (4,)
    for same in (prompt[None], [prompt.tolist()], [prompt]):
        assert decoder.generate(same, 4).tolist() == [made.tolist()]
    assert decoder.generate(prompt.tolist(), 4).tolist() == made.tolist()
    assert decoder.generate(prompt, 0).shape == (0,)


def test_one_token_is_a_prompt(decoder: Decoder) -> None:
    model, prompt = decoder.model, text(1)
    expected = model.generate(prompt[None], max_new_tokens=10, do_sample=False)[0, 1:]
    assert decoder.generate(prompt, 10).tolist() == expected.tolist()


def test_prompts_one_after_the_other(decoder: Decoder) -> None:
    first, second = text(30), text(8)
    alone = decoder.generate(second, 20)
    decoder.generate(first, 30)
    assert decoder.generate(second, 20).tolist() == alone.tolist()


@pytest.mark.parametrize("more", [0, 1, 6])
def test_resume_is_one_long_text(decoder: Decoder, more: int) -> None:
    prompt, extra = text(7), text(more)
    made = decoder.generate(prompt, 10)
    went_on = decoder.generate(extra, 12, resume=True)
    assert went_on.tolist() == decoder.generate(torch.cat([prompt, made, extra]), 12).tolist()


def test_resume_of_several_rows(decoder: Decoder) -> None:
    prompts = [text(7), text(12)]
    made = decoder.generate(prompts, 6)
    went_on = decoder.generate([[], []], 6, resume=True)
    whole = [torch.cat([p, m]) for p, m in zip(prompts, made, strict=True)]
    assert went_on.tolist() == decoder.generate(whole, 6).tolist()


def test_stop_tokens(decoder: Decoder) -> None:
    prompts = [text(5), text(9)]
    free = decoder.generate(prompts, 30)
    end = int(free[0, 11])
    at = free[0].tolist().index(end)
    assert decoder.generate(prompts[0], 30, stop=end).tolist() == free[0, : at + 1].tolist()
    both = decoder.generate(prompts, 30, stop=[end, 10**6])
    assert both[0, : at + 1].tolist() == free[0, : at + 1].tolist()
    other = free[1].tolist()
    until = other.index(end) + 1 if end in other else 30
    assert both.shape[1] == max(at + 1, until)
    assert both[1, :until].tolist() == other[:until]
    assert both[0, at + 1 :].eq(end).all()  # no pad token: the end is repeated


def test_a_row_that_ended_can_go_on(decoder: Decoder) -> None:
    prompts = [text(5), text(9)]
    free = decoder.generate(prompts, 20)
    end = int(free[0, 3])
    made = decoder.generate(prompts, 20, stop=end)
    ends = [row.tolist().index(end) + 1 if end in row else 20 for row in made]
    whole = [torch.cat([p, m[:n]]) for p, m, n in zip(prompts, made, ends, strict=True)]
    assert decoder.generate([[], []], 8, stop=(), resume=True).tolist() == (
        decoder.generate(whole, 8, stop=()).tolist()
    )


def test_the_models_own_end_by_default() -> None:
    model, prompt = make("llama-3"), text(5)
    decoder = mf.decode.compile(model, max_length=40)
    free = decoder.generate(prompt, 30).tolist()
    model.generation_config.eos_token_id = free[8]
    assert decoder.generate(prompt, 30).tolist() == free[: free.index(free[8]) + 1]
    assert decoder.generate(prompt, 30, stop=()).tolist() == free


def test_the_whole_cache_and_no_more(decoder: Decoder) -> None:
    prompt = text(34)
    assert decoder.generate(prompt, 31, stop=()).shape == (31,)  # the last is not read
    with pytest.raises(CacheFull, match=r"row 0 has 34 tokens.*max_length=64"):
        decoder.generate(prompt, 32)
    with pytest.raises(CacheFull, match="compile"):
        decoder.generate([text(3), text(65)], 1)
    decoder.generate(prompt, 31, stop=())
    with pytest.raises(CacheFull):
        decoder.generate([], 1, resume=True)


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ([], {}, "prompt 0 is empty"),
        ([VOCAB], {}, "from 203 to 203"),
        ([-1], {}, "from -1"),
        ([[1]] * 4, {}, "4 prompts at once.*up to 3"),
        (torch.zeros(2, 2, 2).long(), {}, "shape"),
        (torch.zeros(3), {}, "float32"),
        ([1], {"temperature": -1}, "temperature is -1"),
        ([1], {"top_p": 0.0}, "top_p"),
        ([1], {"top_k": -1}, "top_k"),
        ([1], {"repetition_penalty": 0.0}, "repetition_penalty"),
        ([1], {"max_new_tokens": -1}, "max_new_tokens"),
        ([[1], [2]], {"resume": True}, "2 rows to go on from 1"),
    ],
)
def test_what_is_refused(decoder: Decoder, prompt: object, options: dict, words: str) -> None:
    decoder.generate([5], 1)
    with pytest.raises(ValueError, match=words):
        decoder.generate(prompt, **options)


def test_text_is_no_prompt(decoder: Decoder) -> None:
    with pytest.raises(TypeError, match="tokenizer"):
        decoder.generate("Once upon a time")


def test_nothing_to_resume() -> None:
    fresh = mf.decode.compile(make("llama-3"), max_length=8)
    with pytest.raises(ValueError, match="no text yet"):
        fresh.generate([1], 1, resume=True)


@pytest.mark.parametrize("family", ["llama-3", "gpt-2"])
@pytest.mark.parametrize("pad", [-1, VOCAB, 10**12])
def test_padding_that_has_no_embedding(family: str, pad: int) -> None:
    """Configs have such numbers; a row that has ended reads none."""
    model, prompts = make(family), [text(5), text(9)]
    decoder = mf.decode.compile(model, max_length=40, batch=2)
    free = decoder.generate(prompts, 24, stop=())
    end = int(free[0, 2])
    model.generation_config.pad_token_id = pad
    made = decoder.generate(prompts, 24, stop=end)
    first, second = (row.tolist() for row in made)
    expected = free[1].tolist()
    length = expected.index(end) + 1 if end in expected else len(expected)
    assert second[:length] == expected[:length]
    ended = first.index(end) + 1
    assert first[:ended] == free[0, :ended].tolist()
    assert set(first[ended:]) <= {pad}
