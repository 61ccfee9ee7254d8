"""The decode megakernel in the emulator, held against the CPU's on the same tiny models.

Whole texts are made by three blocks, which run at once and wait for each other as on a GPU; those
of the first model by one block as well. Copies into shared memory arrive at once, or as late as
they may, by the order of threads. What is not seen so: caches that hold what another block has
written over, and how long things take.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from decode.tiny import make, text
from torch import Tensor

import megafuse as mf
from cuda_on_cpu.decode_mistakes import PLANTED
from cuda_on_cpu.gpu import ORDERS, SHARED, Gpu
from megafuse.decode import decoder as decoding
from megafuse.decode import kernel_cuda, workspace
from megafuse.decode.kernel import NOT_YET
from megafuse.runtime import sources

# Family, dtype, weights: with and without vectors, norms of heads, windows and biases.
CASES: list[tuple[str, torch.dtype, str | None]] = [
    ("llama-3", torch.float32, None),
    ("llama-3", torch.bfloat16, None),
    ("llama-biases", torch.float16, None),
    ("qwen3", torch.float32, "int8"),
    ("mistral", torch.float32, None),
    ("gpt-2", torch.float16, None),
]
PIECE, LENGTH = 16, 36  # positions of a piece of attention, and of a text: three pieces
WORKERS = 4  # of a block: half of what a GPU gets


def problems(gpu: Gpu, sm: str = "80") -> Iterator[tuple[str, str]]:
    _pretend(gpu, sm)
    launching: Any = kernel_cuda
    for i, (family, dtype, weights) in enumerate(CASES):
        gpu.order(ORDERS[i % len(ORDERS)])
        launching._CONSTANT_FROM = 0 if i % 2 else 1024  # every other one has constant sizes
        try:
            problem = _tried(family, dtype, weights)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        yield f"decode {family} {dtype} {weights or ''}", problem


def planted(gpu: Gpu, name: str) -> str:
    """Nothing where the emulator shows it. One a process, whose kernels have it from then on."""
    order, source, before, after = PLANTED[name]
    folder = Path(tempfile.mkdtemp()) / "kernels"
    shutil.copytree(sources.KERNELS, folder)
    header = (folder / source).read_text(encoding="utf-8")
    assert header.count(before) == 1, before
    (folder / source).write_text(header.replace(before, after), encoding="utf-8")
    changed: Any = sources
    changed.KERNELS = folder
    _pretend(gpu, "80")
    torch.manual_seed(0)
    model, ids = make("llama-3"), text(6)
    expected = mf.decode.compile(model, LENGTH).logits(ids)
    gpu.order(order)
    decoder = mf.decode.compile(model.to("cuda"), LENGTH, threads=3, watchdog=10)
    try:
        found = decoder.logits(ids).cpu()
    except mf.decode.LostWait:  # blocks wait for each other in vain
        return ""
    except RuntimeError as error:
        # A block's own senders have no watchdog: copies are not lost but by such a mistake.
        within = source == "decode_stream_cuda.h" and "is stuck" in str(error)
        return "" if within else str(error)
    return "" if _far(found, expected, torch.float32) else "the logits are right"


def _pretend(gpu: Gpu, sm: str) -> None:
    """What torch would ask a GPU for."""
    patched: Any = decoding
    patched.processors = lambda device: 1
    patched.shared_limit = lambda device: SHARED[sm] * 1024
    patched.chunk_on_gpu = lambda max_length: PIECE
    launching: Any = kernel_cuda
    launching._stream = lambda device: 0
    launching._on = lambda device: contextlib.nullcontext()
    launching._event = lambda device: Ended()
    launching.Shared.of.__defaults__ = (WORKERS,)
    launching._MOST_SLOTS = launching._LEAST_SLOTS  # so that small models use them again and again
    words: Any = workspace
    words.host_words = lambda device, *shape: _both_see(gpu, device, shape)


class Ended:
    """Of a launch that has returned."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


def _both_see(gpu: Gpu, device: torch.device, shape: tuple[int, ...]) -> Tensor:
    """Words of the host that the emulated GPU may read and write; never freed."""
    if device.type == "cpu":
        return torch.zeros(shape, dtype=torch.int64)
    count = math.prod(shape)
    gpu.driver.emulated_allocate.restype = ctypes.c_void_p
    data = gpu.driver.emulated_allocate(ctypes.c_size_t(8 * count))
    held = (ctypes.c_int64 * count).from_address(data)
    return torch.frombuffer(held, dtype=torch.int64).view(shape).zero_()


def _tried(family: str, dtype: torch.dtype, weights: str | None) -> str:
    torch.manual_seed(0)
    model, ids = make(family, dtype), text(LENGTH)
    on_cpu = mf.decode.compile(model, LENGTH, weights=weights, batch=2)
    expected = on_cpu.logits(ids)
    prompts = [ids[:1], ids[1:2]]
    told = on_cpu.generate(prompts, 24)
    model = model.to("cuda")
    first = (family, dtype) == CASES[0][:2]
    for blocks in (1, 3) if first else (3,):
        on_gpu = mf.decode.compile(model, LENGTH, weights=weights, batch=2, threads=blocks)
        if problem := _far(on_gpu.logits(ids).cpu(), expected, dtype):
            return f"{blocks} blocks: {problem}"
        if dtype == torch.float32 and on_gpu.generate(prompts, 24).tolist() != told.tolist():
            return f"{blocks} blocks, two rows: another text than the CPU's"
        if not first:
            continue  # what follows knows no dtype
        if problem := _sampled(on_gpu, ids[:1]) or _stopped(on_gpu, ids[:1]):
            return f"{blocks} blocks: {problem}"
    return ""


def _far(found: Tensor, expected: Tensor, dtype: torch.dtype) -> str:
    """The cache is rounded to dtype, and both round what differs in the last bits of float32."""
    room = (1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps) * float(
        expected.abs().max()
    )
    off = float((found - expected).abs().max())
    return f"logits differ by {off:g}, more than {room:g}" if not off <= room else ""


def _stopped(decoder: Any, prompt: Tensor) -> str:
    """A stream that is closed early ends its launch; what was not taken is not in the text."""
    whole = decoder.generate(prompt, 24).tolist()
    stream = decoder.stream(prompt, 24)
    taken = [next(stream) for _ in range(5)]
    stream.close()
    went_on = decoder.generate([], 19, resume=True).tolist()
    if taken + went_on != whole:
        return "after a stream that was closed the text goes on otherwise"
    decoder._space.halt[0] = 0
    watcher = threading.Thread(target=_halt_at, args=(decoder._space, 4))
    decoder._space.out[:] = NOT_YET
    decoder._cache.lengths[0] = 0
    watcher.start()
    decoder._launch(24, len(decoder.schedule), 0, 1)
    watcher.join()
    made = int((decoder._space.out[0] != NOT_YET).sum())
    return "" if 4 < made < 24 else f"stopped by the host after 4 tokens, it made {made}"


def _halt_at(space: Any, column: int) -> None:
    """As the host would, while the kernel runs."""
    while space.out[0, column] == NOT_YET:
        time.sleep(0.001)
    space.halt[0] = 1


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
