"""Grey values of pixels: read side by side, through shared memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_WEIGHTS = (0.3, 0.6, 0.1)


def _make(size: Size, device: str) -> Arrays:
    (n,) = size
    return {"rgb": cuda.random(n, 3, device=device), "grey": cuda.empty(n, device=device)}


def _exact(arrays: Arrays) -> Arrays:
    return {"grey": _grey(arrays["rgb"].double())}


_PIXEL = (
    "Pixel i is 0.3 times float 3 i, 0.6 times float 3 i + 1 and 0.1 times float 3 i + 2. Within "
    "a block, pixel t lies at 3 t of what the block fetched. nan: never written, or from shared "
    "memory that nobody filled."
)
_BOUNDS = (
    "1,000 pixels are 3,000 floats; the last block has fewer than 128 pixels, and fewer than 384 "
    "floats to fetch. Fetching is bounded by 3 * n, computing by n."
)
_EARLY = (
    "A thread takes floats that other threads fetched: it must wait until they have, at a "
    "__syncthreads() between the fetching and the computing."
)
_APART = (
    "Three loads, and each takes every third float: the warp's 32 lanes touch 12 sectors with "
    "each, 36 in all, and 12 would do. Fetch first: in three rounds the block's 128 threads take "
    "384 neighbours into `__shared__ float pixels[384]`, then each thread takes its three from "
    "there."
)
_SMALL = "128 pixels of a block are 384 floats: that is how long the shared array must be."
_UNFILLED = (
    "A float that is read was never fetched. All 384 floats of a block are fetched, in three "
    "rounds of 128, as far as there are any: that is bounded by 3 * n, not by n. And a thread "
    "whose pixel i is not below n must not compute."
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    rgb = arrays["rgb"].double()
    flat = rgb.flatten()
    n = len(rgb)
    for k, name in enumerate(("red", "green", "blue")):
        without = rgb.clone()
        without[:, k] = 0
        yield "grey", f"The {name} is left out.", _grey(without)
    if n > 128:
        first = rgb[:128].repeat(-(-n // 128), 1)[:n]
        told = "Every block fetched the pixels of the first one: its own begin at blockIdx.x * 384."
        yield "grey", told, _grey(first)
    if n > 128:  # three floats a pixel, but blocks that begin 128 floats apart
        at = torch.arange(n, device=rgb.device)
        first = 128 * (at // 128) + 3 * (at % 128)
        yield (
            "grey",
            f"Each block began 128 floats after the last, not 384. {_PIXEL}",
            _grey(torch.stack([flat[first + k] for k in range(3)], -1)),
        )
        return
    planes = flat[: 3 * n].reshape(3, n).t()
    yield "grey", "Red, green and blue were taken 128 apart: they lie side by side.", _grey(planes)
    along = F.pad(flat, (0, 2)).unfold(0, 3, 1)[:n]
    yield "grey", "Pixel t was taken from float t on: it begins at 3 * t.", _grey(along)
    for order in itertools.permutations(range(3)):
        if order != (0, 1, 2):
            told = "The weights belong to other colours: 0.3 red, 0.6 green, 0.1 blue."
            yield "grey", told, _grey(rgb[:, list(order)])


def _outside(fault: Fault) -> str:
    if fault.array != "rgb":
        return (
            f"{fault.array} has the floats of this block alone, 384 of them from 0 on. {_SMALL} "
            "Thread t's pixel is at 3 * threadIdx.x there, whatever block it is."
        )
    return _BOUNDS


def _two_writers(fault: Fault) -> str:
    if fault.array == "grey":
        return "threadIdx.x is the same in every block: pixel i is blockIdx.x * 128 + threadIdx.x."
    return "In round k thread t fetches float k * 128 + t: a round is 128 floats."


def _grey(rgb: Tensor) -> Tensor:
    return rgb @ torch.tensor(_WEIGHTS, dtype=torch.float64, device=rgb.device)


TASK = Task(
    kernel=Kernel("grey", "IOi"),
    launch=lambda size: Launch((cuda.blocks(size[0], 128),), (128,), size),
    make=_make,
    exact=_exact,
    cases=(
        Case("one block", (128,), _PIXEL),
        Case("1,000", (1000,), _BOUNDS),
        Case("2,048", (2048,), _PIXEL),
    ),
    large=(1 << 24,),
    least=lambda size: 16 * size[0],
    operations=lambda size: 5 * size[0],
    limits=(
        cuda.moved(lambda size: 16 * size[0], _APART),
        cuda.banks("Threads of a warp want several words of the same bank.", 2.0),
    ),
    known=_known,
    never=(
        Look(
            lambda source: (
                bool(re.search(r"float\s+\w+\s*\[", source)) and "__shared__" not in source
            ),
            "An array without __shared__ is every thread's own: nobody else finds there what this "
            "thread fetched.",
        ),
    ),
    means={
        Kind.RACE: _EARLY,
        Kind.NEVER_WRITTEN: _UNFILLED,
        Kind.TWO_WRITERS: _two_writers,
        Kind.READ_OUTSIDE: _outside,
        Kind.WRITTEN_OUTSIDE: _outside,
        Kind.BARRIER_MISSED: "A thread without a pixel may still have floats to fetch for others.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """A block, several, a last one that is not full; sectors; banks."""
    return cuda.check(TASK, work)
