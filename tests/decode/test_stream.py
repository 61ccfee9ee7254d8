"""Tokens that are taken while the kernel makes the next ones: the text is what was taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch

import megafuse as mf
from decode.tiny import make, text
from megafuse.decode import Decoder
from megafuse.decode.kernel import NOT_YET


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    return mf.decode.compile(make("llama-3"), max_length=80, batch=2, threads=2)


def first(stream: Iterator[Any], count: int) -> list[Any]:
    """Takes so many tokens, waits until the kernel is ahead of them, and closes the stream."""
    made = list(islice(stream, count))
    time.sleep(0.02)
    stream.close()  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("taken", [0, 1, 5, 16, 17, 30])
def test_closed_early_it_goes_on_from_what_was_taken(decoder: Decoder, taken: int) -> None:
    prompt = text(9)
    whole = decoder.generate(prompt, 40).tolist()
    stream = decoder.stream(prompt, 40)
    next_too = first(stream, taken)
    assert next_too == whole[:taken]
    if taken == 0:  # nothing was begun
        return
    assert decoder._cache.lengths[0] == 9 + taken - 1
    went_on = decoder.generate([], 40 - taken, resume=True).tolist()
    assert next_too + went_on == whole


def test_the_kernel_is_ahead_and_stops(decoder: Decoder) -> None:
    """Without being told, it would make all 16 tokens of its launch."""
    stream = decoder.stream(text(9), 40)
    next(stream)
    deadline = time.monotonic() + 10
    while decoder._space.out[0, 3] == NOT_YET and time.monotonic() < deadline:
        time.sleep(0.001)
    assert decoder._space.out[0, 3] != NOT_YET
    stream.close()  # type: ignore[attr-defined]
    assert decoder._space.halt[0] == 1


def test_the_host_can_stop_a_launch(decoder: Decoder) -> None:
    """Thread by thread they all stop after the same token."""
    decoder.generate([5], 1)
    space = decoder._space
    decoder._prepare(16, len(decoder.schedule), 0, 1)
    space.out[:] = NOT_YET
    space.halt[0] = 1
    kernel = decoder._kernel(1)
    kernel.launch(space.step)
    assert (space.out[0] != NOT_YET).tolist() == [True] + [False] * 15


def test_resume_with_more_text_after_a_closed_stream(decoder: Decoder) -> None:
    prompt, extra = text(7), text(4)
    made = first(decoder.stream(prompt, 30), 6)
    went_on = decoder.generate(extra, 12, resume=True)
    again = decoder.generate(torch.cat([prompt, torch.tensor(made), extra]), 12)
    assert went_on.tolist() == again.tolist()


def test_rows_that_ended_stay_so(decoder: Decoder) -> None:
    prompts = [text(5), text(9)]
    free = decoder.generate(prompts, 30, stop=())
    end = int(free[0, 4])
    whole = decoder.generate(prompts, 30, stop=end)
    if whole.shape[1] < 8:
        pytest.skip("both rows end early with these numbers")
    made = first(decoder.stream(prompts, 30, stop=end), 7)
    assert made == whole[:, :7].T.tolist()
    at = free[0].tolist().index(end)
    assert decoder._cache.lengths.tolist() == [5 + at, 9 + 7 - 1]
    kept = [torch.cat([prompts[0], free[0, : at + 1]]), torch.cat([prompts[1], free[1, :7]])]
    went_on = decoder.generate([[], []], 6, stop=(), resume=True)
    assert went_on.tolist() == decoder.generate(kept, 6, stop=()).tolist()


def test_tokens_that_were_not_taken_are_not_punished(decoder: Decoder) -> None:
    """The repetition penalty knows the text alone."""
    prompt = text(9)
    made = first(decoder.stream(prompt, 40, repetition_penalty=1.5), 3)
    known = sorted({*prompt.tolist(), *made})
    assert decoder._space.seen[0].nonzero().flatten().tolist() == known


def test_a_new_text_ends_the_stream(decoder: Decoder) -> None:
    prompt, other = text(9), text(6)
    alone = decoder.generate(other, 20).tolist()
    stream = decoder.stream(prompt, 40)
    next(stream)
    assert decoder.generate(other, 20).tolist() == alone
    with pytest.raises(RuntimeError, match="another text"):
        next(stream)
    assert decoder.generate(other, 20).tolist() == alone


def test_logits_of_the_last_token(decoder: Decoder) -> None:
    prompt = text(9)
    made = list(decoder.stream(prompt, 20))
    assert decoder.last_logits[0].argmax() == made[-1]
    stream = decoder.stream(prompt, 40)
    next(stream)
    with pytest.raises(RuntimeError, match="later token"):
        _ = decoder.last_logits
    first(stream, 1)
    with pytest.raises(RuntimeError, match="later token"):
        _ = decoder.last_logits


def test_logits_after_a_text_that_ended(decoder: Decoder) -> None:
    """What ended the row before is forgotten."""
    prompt = text(9)
    expected = decoder.logits(prompt)
    end = int(decoder.generate(prompt, 1)[0])
    decoder.generate(prompt, 20, stop=end)
    assert torch.equal(decoder.logits(prompt), expected)


def test_another_thread_in_the_same_decoder_is_an_error(decoder: Decoder) -> None:
    inside, go_on, said = threading.Event(), threading.Event(), []

    def hold() -> None:
        with decoder._alone():
            inside.set()
            go_on.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(10)
    for call in (
        lambda: decoder.generate([1], 1),
        lambda: decoder.logits([1]),
        lambda: next(decoder.stream([1], 1)),
    ):
        with pytest.raises(RuntimeError, match="another thread") as error:
            call()
        said.append(str(error.value))
    go_on.set()
    holder.join()
    assert len(said) == 3
    assert decoder.generate([1], 1).shape == (1,)
