"""The sum of each row by a warp, with shuffles."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Known, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work


def _make(size: Size, device: str) -> Arrays:
    rows, cols = size
    return {"x": cuda.random(rows, cols, device=device), "out": cuda.empty(rows, device=device)}


def _exact(arrays: Arrays) -> Arrays:
    return {"out": arrays["x"].double().sum(-1)}


def _launch(size: Size) -> Launch:
    return Launch((cuda.blocks(size[0], 4),), (128,), size)


_LANES = (
    "A row's sum is the sum of all 32 lanes' sums. With __shfl_down_sync lane l gets what lane "
    "l + d has: after d = 16, 8, 4, 2, 1, added each time, lane 0 has all of it. Fewer rounds, or "
    "lane 0's own sum alone, leave some out."
)
_SHORT = (
    "A row of 20 floats leaves lanes 20 to 31 without one: they add 0, and take part all the same."
)
_LONG = (
    "A row of 1,000 floats: lane l takes floats l, l + 32, l + 64 and so on, and adds them up "
    "before the lanes meet."
)
_AWAY = "A lane without an element adds 0, but it must come to the shuffle."
_APART = (
    "Right, and slow: each lane walks a stretch of its own, so the 32 lanes touch 32 sectors at a "
    "time. Lane l should take floats l, l + 32, l + 64, …: neighbours side by side."
)


_OWN = (
    "Twice the sum: with d = 32 there is no lane l + 32, and a lane gets its own value back. The "
    "first round is d = 16."
)


def _known(arrays: Arrays) -> Iterator[Known]:
    x = arrays["x"].double()
    lanes = F.pad(x, (0, -x.shape[1] % 32)).reshape(len(x), -1, 32).sum(1)
    yield "out", "That is lane 0's own sum: the lanes have not met.", lanes[:, 0]
    yield "out", _OWN, 2 * x.sum(-1)
    cols = x.shape[1]
    if cols % 32:
        told = "The last floats are left out: with cols / 32 a part that is not whole is lost."
        yield "out", told, x[:, : cols // 32 * 32].sum(-1)
    yield "out", "That is the sum of the first 32 floats: the lanes go on by 32.", x[:, :32].sum(-1)
    yield "out", "That is the mean: the sum is not divided.", x.mean(-1)
    told = "Floats are in it several times: lane l takes l, l + 32, …, so it goes on by 32."
    yield "out", told, (x * torch.arange(1, cols + 1, device=x.device).clamp(max=32)).sum(-1)
    told = "Every lane begins at float 0: lane l begins at l."
    yield "out", Look.having(r"=\s*0\s*;\s*\w+\s*<\s*cols", told), 32 * lanes[:, 0]
    told = "threadIdx.x == 0 is one thread of the block, and it has four warps: lane == 0."
    alone = torch.full_like(x[:, 0], torch.nan)
    alone[::4] = x[::4].sum(-1)
    yield "out", told, alone
    for rounds, told in (
        ((16,), "Only the round d = 16 was run: it takes a loop, d = 16, 8, 4, 2, 1."),
        (range(16, 0, -2), "d is halved in every round, d /= 2: with d -= 2 lanes count twice."),
    ):
        sums = lanes
        for d in rounds:
            sums = sums + torch.cat([sums[:, d:], sums[:, -d:]], 1)
        yield "out", told, sums[:, 0]
    same = lanes
    for d in (16, 8, 4, 2, 1):
        same = same + same[:, d : d + 1]
    told = "__shfl_sync gives every lane what lane d has: with __shfl_down_sync it is lane l + d."
    yield "out", told, same[:, 0]
    up, last = lanes.clone(), lanes.clone()
    for d in (16, 8, 4, 2, 1):
        up = up + torch.cat([up[:, :d], up[:, :-d]], 1)
        last = last + torch.cat([last[:, d:], last[:, -d:]], 1)
    yield "out", "With __shfl_up_sync lane l takes what lane l - d has: lane 0 gets none.", up[:, 0]
    told = "Lane 31 writes, but with __shfl_down_sync it is lane 0 that has the sum."
    yield "out", told, last[:, 31]
    told = "`=` in place of `+=`: what the lane had is lost in every round."
    yield "out", told, lanes[:, 31]
    for missing in (16, 8, 4, 2, 1):
        away = [d for d in (16, 8, 4, 2, 1) if d != missing]
        sums = lanes.clone()
        for d in away:
            sums = sums + F.pad(sums, (0, d))[:, d:]
        told = f"The round d = {missing} is missing: lane 0 has the sum of 16 lanes."
        yield "out", told, sums[:, 0]


TASK = Task(
    kernel=Kernel("row_sums", "IOii"),
    launch=_launch,
    make=_make,
    exact=_exact,
    cases=(
        Case("rows of 32", (8, 32), _LANES),
        Case("rows of 20", (7, 20), _SHORT),
        Case("rows of 1,000", (6, 1000), _LONG),
        Case("rows of 1,024", (8, 1024), _LONG),
    ),
    large=(1 << 14, 1024),
    least=lambda size: 4 * size[0] * size[1] + 4 * size[0],
    operations=lambda size: size[0] * size[1],
    limits=(cuda.moved(lambda size: 4 * size[0] * size[1] + 32 * size[0], _APART),),
    tolerance=1e-4,
    known=_known,
    means={
        Kind.SHUFFLE_MISSED: _AWAY,
        Kind.TWO_WRITERS: "Only one lane may write a row's sum, and to out[row].",
        Kind.READ_OUTSIDE: "Row r begins at r * cols, and its last float is number cols - 1.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """A row of 32, of fewer, of many; sectors; no shared memory."""
    return cuda.check(TASK, work)
