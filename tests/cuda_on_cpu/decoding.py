"""The decode megakernel in the emulator, held against the CPU's on the same tiny models.

Blocks run one after the other here, so a grid of several cannot wait for itself. Whole texts are
made by a grid of one block; with three blocks every phase is a launch of its own, whose end is the
wait. What is not seen so: waits between blocks that run at once, and copies that arrive late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from decode.tiny import make, text
from torch import Tensor

import megafuse as mf
from cuda_on_cpu.gpu import ORDERS, SHARED, Gpu
from megafuse.decode import decoder as decoding
from megafuse.decode import kernel_cuda

# Family, dtype, weights: with and without vectors, norms of heads, windows and biases.
CASES: list[tuple[str, torch.dtype, str | None]] = [
    ("llama-3", torch.float32, None),
    ("llama-3", torch.bfloat16, None),
    ("llama-biases", torch.float16, None),
    ("qwen3", torch.float32, "int8"),
    ("mistral", torch.float32, None),
    ("gpt-2", torch.float16, None),
]
LENGTH = 70  # past a piece of attention
THREADS = 128  # of a block: a quarter of what a GPU gets, in a quarter of the time


def problems(gpu: Gpu, sm: str = "80") -> Iterator[tuple[str, str]]:
    _pretend(sm)
    for i, (family, dtype, weights) in enumerate(CASES):
        gpu.order(ORDERS[i % len(ORDERS)])
        try:
            problem = _tried(family, dtype, weights)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        yield f"decode {family} {dtype} {weights or ''}", problem


def _pretend(sm: str) -> None:
    """What torch would ask a GPU for."""
    patched: Any = decoding
    patched.processors = lambda device: 1
    patched.shared_limit = lambda device: SHARED[sm] * 1024
    streams: Any = kernel_cuda
    streams._stream = lambda device: 0
    streams.CudaKernel.__init__.__defaults__ = (THREADS,)


def _tried(family: str, dtype: torch.dtype, weights: str | None) -> str:
    torch.manual_seed(0)
    model, ids = make(family, dtype), text(LENGTH)
    on_cpu = mf.decode.compile(model, LENGTH, weights=weights, batch=2)
    expected = on_cpu.logits(ids)
    prompts = [ids[:1], ids[1:2]]
    told = on_cpu.generate(prompts, 24)
    on_gpu = mf.decode.compile(model.to("cuda"), LENGTH, weights=weights, batch=2)
    if problem := _far(on_gpu.logits(ids).cpu(), expected, dtype):
        return f"one block: {problem}"
    if dtype == torch.float32 and on_gpu.generate(prompts, 24).tolist() != told.tolist():
        return "two rows: another text than the CPU's"
    if problem := _sampled(on_gpu, ids[:1]):
        return problem
    spread = mf.decode.compile(model, LENGTH, weights=weights, threads=3)
    found = torch.stack([_by_phases(spread, int(token)) for token in ids])
    problem = _far(found, expected, dtype)
    return f"three blocks: {problem}" if problem else ""


def _far(found: Tensor, expected: Tensor, dtype: torch.dtype) -> str:
    """The cache is rounded to dtype, and both round what differs in the last bits of float32."""
    room = (1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps) * float(
        expected.abs().max()
    )
    off = float((found - expected).abs().max())
    return f"logits differ by {off:g}, more than {room:g}" if not off <= room else ""


def _by_phases(decoder: Any, token: int) -> Tensor:
    """One token, a launch for each phase but sampling."""
    space = decoder._space
    space.tokens[0] = token
    for phase in range(len(decoder.schedule) - 1):
        decoder._launch(1, phase + 1, phase, 1)
    decoder._cache.lengths[0] += 1
    return space.logits[0].cpu().clone()


def _sampled(decoder: Any, prompt: Tensor) -> str:
    """The same seed gives the same text; a threshold that leaves one token gives the likeliest."""
    likeliest = decoder.generate(prompt, 8).tolist()
    for how in ({"top_k": 1}, {"top_p": 1e-6}, {"top_k": 5, "top_p": 1e-6}):
        if decoder.generate(prompt, 8, temperature=1.0, seed=3, **how).tolist() != likeliest:
            return f"{how} is not the likeliest text"
    free = {"temperature": 3.0, "top_k": 50, "top_p": 0.9, "repetition_penalty": 1.2}
    first, again, other = (
        decoder.generate(prompt, 12, seed=seed, **free).tolist() for seed in (1, 1, 2)
    )
    if first != again or first == other:
        return "a seed does not decide the text"
    return ""
