"""The sum of each row by a block: warps first, then their sums."""

from __future__ import annotations

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

_WARPS = 8


def _make(size: Size, device: str) -> Arrays:
    rows, cols = size
    return {"x": cuda.random(rows, cols, device=device), "out": cuda.empty(rows, device=device)}


def _exact(arrays: Arrays) -> Arrays:
    return {"out": arrays["x"].double().sum(-1)}


_ALL = (
    "Eight warps have a sum each, and the row's is the sum of all eight. One warp's alone, or a "
    "tree that stops too early, leaves some out."
)
_SHORT = "A row of 100 floats leaves most of the 256 threads without one: they add 0."
_EARLY = (
    "Warps run in any order: who reads another warp's sum must wait for it, at a __syncthreads() "
    "after all have written theirs and before one is read."
)
_BARRIER = "The barrier is for all 256 threads, so it cannot stand in an `if` that only some take."
_SMALL = "256 threads are 8 warps: the array has a place for each of them."
_WAITS = (
    "Right, and full of waiting: a tree in shared memory has a barrier at every level, nine a "
    "row, and at each of them all eight warps wait for the slowest, while ever fewer threads have "
    "something to add (a warp with one busy lane takes as long as one with 32). Let each warp add "
    "up by shuffles, as in the exercise before; then one lane a warp writes its sum to shared "
    "memory, one barrier, and one warp (or one thread) adds the eight."
)


_OFTEN = "x is read more than once: each thread takes its own floats, and keeps their sum."
_STRETCH = cuda.stretch("thread t takes floats t, t + 256, t + 512, …")
_ROW = "Row r begins at r * cols, and its last float is number cols - 1."


def _outside(fault: Fault) -> str:
    return _ROW if fault.array in ("x", "out") else _SMALL


_ALONE = (
    "That is warp 0's sum alone: the other seven are not added. (An array without __shared__ is "
    "every thread's own, and has only what that thread wrote.)"
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x = arrays["x"].double()
    warps = F.pad(x, (0, -x.shape[1] % 256)).reshape(len(x), -1, 8, 32).sum((1, 3))
    yield "out", _ALONE, warps[:, 0]
    yield "out", "Warp 0's sum is in it twice.", warps.sum(1) + warps[:, 0]
    firsts = F.pad(x, (0, -x.shape[1] % 256)).reshape(len(x), -1, 8, 32).sum(1)[:, :, 0]
    yield "out", "Lane 0 of each warp alone: the lanes have not met, by shuffles.", firsts.sum(1)
    lanes = F.pad(x, (0, -x.shape[1] % 32)).reshape(len(x), -1, 32)
    behind = lanes.flip(1).cumsum(1).flip(1)[:, :8].sum((1, 2))
    told = "Floats are in it several times: each thread steps by 256, the whole block, not by 32."
    yield "out", told, behind
    yield "out", "Warp 0's sum is left out: the eight begin with 0.", warps[:, 1:].sum(1)
    yield "out", "That is the last warp's sum alone: `=` in place of `+=`.", warps[:, 7]
    threads = F.pad(x, (0, -x.shape[1] % 256)).reshape(len(x), -1, 8, 32).sum(1)
    told = "Every warp has summed the same floats: they begin at threadIdx.x, not at the lane."
    yield "out", told, 8 * warps[:, 0]
    met = threads
    for d in (16, 8, 4, 2, 1):
        met = met + torch.cat([met[..., d:], met[..., -d:]], -1)
    told = "Lane 31 of each warp wrote: with __shfl_down_sync it is lane 0 that has the sum."
    yield "out", told, met[..., 31].sum(1)
    for missing in (16, 8, 4, 2, 1):
        sums = threads
        for d in (16, 8, 4, 2, 1):
            sums = sums if d == missing else sums + F.pad(sums, (0, d))[..., d:]
        told = f"The round d = {missing} is missing: lane 0 has the sum of 16 lanes."
        yield "out", told, sums[..., 0].sum(1)
    for last in range(2, 8):
        told = f"That is the sum of {last} of the 8 warps."
        yield "out", told, warps[:, :last].sum(1)


TASK = Task(
    kernel=Kernel("row_sums", "IOii"),
    launch=lambda size: Launch((size[0],), (256,), size),
    make=_make,
    exact=_exact,
    cases=(
        Case("rows of 256", (2, 256), _ALL),
        Case("rows of 100", (3, 100), _SHORT),
        Case("rows of 2,000", (4, 2000), _ALL),
    ),
    large=(1 << 12, 1 << 13),
    least=lambda size: 4 * size[0] * size[1] + 4 * size[0],
    operations=lambda size: size[0] * size[1],
    limits=(
        cuda.meetings(lambda size: 2 * _WARPS * size[0], _WAITS),
        cuda.moved(lambda size: 4 * size[0] * size[1] + 32 * size[0], _OFTEN, apart=_STRETCH),
    ),
    tolerance=1e-4,
    known=_known,
    never=(
        Look(
            lambda source: (
                bool(re.search(r"float\s+\w+\s*\[", source)) and "__shared__" not in source
            ),
            "An array without __shared__ is every thread's own: thread 0 does not find the other "
            "warps' sums in it.",
        ),
    ),
    means={
        Kind.RACE: _EARLY,
        Kind.TWO_WRITERS: (
            "One lane of each warp writes the warp's sum, into the warp's own place, "
            "sums[threadIdx.x / 32]; and one thread of the block writes out[row]."
        ),
        Kind.NEVER_WRITTEN: "There are as many sums as warps, 8, and each must be written.",
        Kind.BARRIER_MISSED: _BARRIER,
        Kind.BARRIERS_MIXED: _BARRIER,
        Kind.READ_OUTSIDE: _outside,
        Kind.WRITTEN_OUTSIDE: _outside,
        Kind.SHUFFLE_MISSED: "A lane without an element adds 0, but it must come to the shuffle.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Short rows, long rows; how often warps wait; sectors."""
    return cuda.check(TASK, work)
