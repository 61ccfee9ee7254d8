"""The CUDA kernel on a GPU, against the model on the CPU: what tests/cuda_on_cpu sees in an
emulator, and what that does not see: many blocks at once, real caches and real copies."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch

import megafuse as mf
from decode.test_families import CHANGING
from decode.tiny import FAMILIES, make, text
from megafuse.decode import LostWait

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

# What vectors, pieces of heads and shared memory must cope with.
SHAPES: dict[str, dict[str, Any]] = {
    "hidden-384": {"hidden_size": 384, "head_dim": 96},
    "hidden-2880": {"hidden_size": 2880, "num_attention_heads": 8, "head_dim": 80},
    "hidden-100": {"hidden_size": 100, "head_dim": 18, "intermediate_size": 203},
    "head-256": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 1},
    "many-rows": {"intermediate_size": 4096, "vocab_size": 50257},
}


def close(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> bool:
    room = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    return bool((found.cpu() - exact).abs().max() < room * float(exact.abs().max()))


@torch.no_grad()
def held_against_the_cpu(model: Any) -> None:
    """Its logits against those of the same weights in float32."""
    ids, dtype = text(150), model.dtype
    exact = copy.deepcopy(model).float()(ids[None]).logits[0]
    decoder = mf.decode.compile(model.to("cuda"), max_length=150)
    assert close(decoder.logits(ids), exact, dtype)
    if dtype == torch.float32:  # else eager rounds what it puts into the cache more often
        assert close(decoder.logits(ids, prefilled=130), exact[130:], dtype)


@torch.no_grad()
def calm(model: Any) -> Any:
    """With smaller weights in wide layers: else rounding alone changes their logits by percents."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_((64 / model.config.hidden_size) ** 0.5)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in CHANGING])
def test_logits(family: str, dtype: torch.dtype) -> None:
    held_against_the_cpu(make(family, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, dtype: torch.dtype) -> None:
    held_against_the_cpu(calm(make("llama-3", dtype, **SHAPES[shape])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("blocks", [1, 2, 7, 40])
def test_the_number_of_blocks_changes_no_bit(blocks: int, dtype: torch.dtype) -> None:
    model, ids = make("llama-3", dtype).to("cuda"), text(90)
    found = mf.decode.compile(model, max_length=90, threads=blocks).logits(ids)
    assert torch.equal(found, mf.decode.compile(model, max_length=90).logits(ids))


@pytest.mark.parametrize("family", FAMILIES)
def test_text(family: str) -> None:
    """As the CPU's kernel makes it, by generate and by stream, rows of any lengths together."""
    model, prompts = make(family), [text(20), text(1), text(33)]
    expected = [mf.decode.compile(model, max_length=120).generate(p, 80).tolist() for p in prompts]
    decoder = mf.decode.compile(model.to("cuda"), max_length=120, batch=3)
    assert decoder.generate(prompts, 80).tolist() == expected
    assert decoder.generate(prompts[0], 80).tolist() == expected[0]
    assert list(decoder.stream(prompts[0], 80)) == expected[0]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_every_batch(rows: int) -> None:
    model, prompts = (
        make("llama-3", torch.bfloat16).to("cuda"),
        [text(3 + 5 * i) for i in range(rows)],
    )
    decoder = mf.decode.compile(model, max_length=80, batch=8)
    together = decoder.generate(prompts, 30)
    assert [decoder.generate(p, 30).tolist() for p in prompts] == together.tolist()


def test_the_same_bits_every_time() -> None:
    model, ids = make("llama-3", torch.bfloat16, intermediate_size=2048).to("cuda"), text(100)
    decoder = mf.decode.compile(model, max_length=100)
    first = decoder.logits(ids)
    for _ in range(20):
        assert torch.equal(decoder.logits(ids), first)


def test_sampling() -> None:
    model, prompt = make("llama-3", vocab_size=50257), text(9)
    on_cpu = mf.decode.compile(model, max_length=80)
    likeliest = on_cpu.generate(prompt, 60, repetition_penalty=1.3).tolist()
    decoder = mf.decode.compile(model.to("cuda"), max_length=80)
    assert decoder.generate(prompt, 60, repetition_penalty=1.3).tolist() == likeliest
    greedy = decoder.generate(prompt, 60).tolist()
    for how in ({"top_k": 1}, {"top_p": 1e-6}, {"top_k": 5, "top_p": 1e-6}):
        assert decoder.generate(prompt, 60, temperature=1.0, seed=3, **how).tolist() == greedy
    free: dict[str, Any] = {"temperature": 3.0, "top_k": 50, "top_p": 0.9}
    made = [decoder.generate(prompt, 60, seed=seed, **free).tolist() for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_a_stream_comes_while_the_kernel_runs_and_can_be_closed() -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    model, prompt = make("llama-3", torch.bfloat16, **shape).to("cuda"), text(9)
    decoder = mf.decode.compile(model, max_length=200)
    whole = decoder.generate(prompt, 64).tolist()
    times = []
    for _ in decoder.stream(prompt, 64):
        times.append(time.perf_counter())
    assert times[32] - times[1] > 0.2 * (times[-1] - times[1])  # not all of them at the end
    stream: Any = decoder.stream(prompt, 64)
    taken = [next(stream) for _ in range(5)]
    stream.close()
    assert decoder.generate([], 59, resume=True).tolist() == whole[5:]
    assert taken == whole[:5]


def test_int8() -> None:
    model, ids = make("llama-3", hidden_size=128), text(70)
    expected = mf.decode.compile(model, max_length=70, weights="int8").logits(ids)
    found = mf.decode.compile(model.to("cuda"), max_length=70, weights="int8").logits(ids)
    assert close(found, expected, torch.float32)


def test_long_caches() -> None:
    model = make("llama-3", max_position_embeddings=4300)
    ids = text(4130)
    with torch.no_grad():
        exact = model(ids[None]).logits[0]
    decoder = mf.decode.compile(model.to("cuda"), max_length=4130)
    for cached in (1, 63, 64, 65, 1023, 4095):
        found = decoder.logits(ids[: cached + 20], prefilled=cached)
        assert close(found, exact[cached : cached + 20], torch.float32)


def test_a_lost_wait_is_an_error() -> None:
    """The barrier waits for one block more than there are: the watchdog ends it."""
    decoder = mf.decode.compile(make("llama-3").to("cuda"), max_length=16, watchdog=0.2)
    prompt = text(4)
    right = decoder.generate(prompt, 8)
    decoder._space.step["parties"] += 1
    with pytest.raises(LostWait, match=r"more than 0.2 s"):
        decoder.generate(prompt, 8)
    decoder._space.step["parties"] -= 1
    assert decoder.generate(prompt, 8).tolist() == right.tolist()


def test_more_blocks_than_run_at_once_are_refused() -> None:
    with pytest.raises(RuntimeError, match="cuLaunchCooperativeKernel"):
        mf.decode.compile(make("llama-3").to("cuda"), max_length=16, threads=5000).generate([5], 2)


def test_memory_is_flat() -> None:
    decoder = mf.decode.compile(make("llama-3").to("cuda"), max_length=64)
    decoder.generate([5], 40)
    before = torch.cuda.memory_allocated()
    for i in range(20):
        decoder.generate([i], 40)
        next(decoder.stream([i], 40))
    assert torch.cuda.memory_allocated() == before
