"""The gradients of LayerNorm: of x within a row, of weight over all rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Size, Task
from megafuse.learn.exercises.emulator.faults import Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_EPS = 1e-5


def _make(size: Size, device: str) -> Arrays:
    rows, cols = size
    x = cuda.random(rows, cols, device=device)
    variance, mean = torch.var_mean(x.double(), -1, correction=0)
    return {
        "grad": cuda.random(rows, cols, device=device),
        "x": x,
        "weight": cuda.random(cols, device=device),
        "mean": mean.float(),
        "rstd": (variance + _EPS).rsqrt().float(),
        "dx": cuda.empty(rows, cols, device=device),
        "dweight": torch.zeros(cols, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    x, weight = (arrays[name].double().requires_grad_() for name in ("x", "weight"))
    out = F.layer_norm(x, weight.shape, weight, None, _EPS)
    dx, dweight = torch.autograd.grad(out, (x, weight), arrays["grad"].double())
    return {"dx": dx, "dweight": dweight}


_FORMULA = (
    "With h = (x - mean) * rstd and g = grad * weight: dx = rstd * (g - mean(g) - h * mean(g * "
    "h)), where both means are over the row, of all 32 lanes. x moves the row's mean and its "
    "variance too: g alone would be the gradient of a plain scale. dweight[c] is the sum over all "
    "rows of grad * h, and not of grad * x."
)
_ROWS = (
    "Every row adds to dweight, and rows belong to different warps and blocks. `dweight[c] += v` "
    "is a read and a write, and what another warp added in between is lost: "
    "atomicAdd(&dweight[c], v) does it in one step."
)
_STRETCH = cuda.stretch("in round k lane l has column k * 32 + l, not l * 8 + k.")
_PASSES = (
    "grad, x and weight are read twice: for the sums, and for the result. Rows have at most 256 "
    "floats, 8 for each lane: keep g and h in registers between the two."
)


_PLACE = "Two warps write the same row: element c of a row lies at dx[row * cols + c]."
_ONE = "mean and rstd have a number for each row: mean[row], rstd[row]."
_BOUNDS = "Where column k * 32 + lane is not below cols, there is nothing to read."


def _own(values: Tensor) -> Tensor:
    """What each lane alone would take for the row's mean."""
    cols = values.shape[1]
    lanes = F.pad(values, (0, -cols % 32)).reshape(len(values), -1, 32)
    return (lanes.sum(1) / cols).repeat(1, lanes.shape[1])[:, :cols]


def _dx(g: Tensor, h: Tensor, rstd: Tensor) -> Tensor:
    return rstd * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    grad, x, weight, mean, rstd = (
        arrays[name].double() for name in ("grad", "x", "weight", "mean", "rstd")
    )
    mean, rstd = mean[:, None], rstd[:, None]
    h, g = (x - mean) * rstd, grad * weight
    mg, mgh = g.mean(-1, keepdim=True), (g * h).mean(-1, keepdim=True)
    right = _dx(g, h, rstd)
    yield "dx", "Both means are left out: x is taken to move nothing but itself.", rstd * g
    yield "dx", "mean(g) is left out: x moves the row's mean, too.", rstd * (g - h * mgh)
    yield "dx", "h * mean(g * h) is left out: x moves the row's variance, too.", rstd * (g - mg)
    yield "dx", "The factor rstd is left out.", g - mg - h * mgh
    cols = x.shape[1]
    yield "dx", "The sum of g is not divided by cols.", rstd * (g - cols * mg - h * mgh)
    yield "dx", "The sum of g * h is not divided by cols.", rstd * (g - mg - h * cols * mgh)
    both = rstd * (g - cols * mg - h * cols * mgh)
    yield "dx", "The sums of g and of g * h are not divided by cols.", both
    yield "dx", "h * mean(g * h) is added: it is subtracted.", rstd * (g - mg + h * mgh)
    yield "dx", "mean(g) is added: it is subtracted.", rstd * (g + mg - h * mgh)
    told = "The second mean is of g, too: it is the mean of g * h."
    yield "dx", told, rstd * (g - mg - h * mg)
    bare = x - mean
    told = "h is x - mean without the factor rstd."
    yield "dx", told, rstd * (g - mg - bare * (g * bare).mean(-1, keepdim=True))
    yield "dweight", told, (grad * bare).sum(0)
    for own_g, own_gh in ((True, True), (True, False), (False, True)):
        first = _own(g) if own_g else mg
        second = _own(g * h) if own_gh else mgh
        told = "A lane's own sum was taken for the row's: warp_sum brings the 32 together."
        yield "dx", told, rstd * (g - first - h * second)
    told = "The two means have changed places: it is g - mean(g) - h * mean(g * h)."
    yield "dx", told, rstd * (g - mgh - h * mg)
    yield "dx", "It is divided by rstd: rstd is 1 / sqrt(…) already, a factor.", right / rstd**2
    yield "dx", "rstd is a factor twice.", right * rstd
    for other in {256, 32, -(-cols // 32) * 32} - {cols}:
        told = f"The sums are divided by {other}, not by cols: a row of {cols} floats has {cols}."
        yield "dx", told, rstd * (g - mg * cols / other - h * mgh * cols / other)
    told = "The weight was taken by row, weight[row]: it goes with the column, weight[c]."
    by_row = grad * weight[: len(x), None]
    yield "dx", told, _dx(by_row, h, rstd)
    told = "h is x as it came: it is (x - mean) * rstd."
    yield "dx", told, _dx(g, x, rstd)
    told = "The second mean is of grad * h: it is of g * h, with the weight."
    yield "dx", told, rstd * (g - mg - h * (grad * h).mean(-1, keepdim=True))
    yield "dweight", "That sums grad alone, which is the gradient of a bias.", grad.sum(0)
    told = "Lane 0 alone added to dweight: every lane adds for its own columns."
    yield "dweight", told, (grad * h).sum(0) * (torch.arange(cols, device=x.device) % 32 == 0)
    row_sums = torch.zeros_like(weight)
    row_sums[: len(x)] = (grad * h).sum(-1)[:cols]
    told = "That adds up the row, in dweight[row]: dweight[c] is a sum over rows, of column c."
    yield "dweight", told, row_sums
    yield "dweight", "That sums grad * x: it should be grad * h.", (grad * x).sum(0)
    yield "dweight", "That sums g * h: the weight belongs into dx alone.", (g * h).sum(0)


TASK = Task(
    kernel=Kernel("norm_backward", "IIIIIOOii"),
    launch=lambda size: Launch((cuda.blocks(size[0], 4),), (128,), size),
    make=_make,
    exact=_exact,
    cases=(
        Case("one row", (1, 64), _FORMULA),
        Case("6 rows of 100", (6, 100), _FORMULA),
        Case("8 rows of 256", (8, 256), _FORMULA),
    ),
    large=(1 << 16, 256),
    least=lambda size: 12 * size[0] * size[1] + 8 * size[1] + 8 * size[0],
    operations=lambda size: 12 * size[0] * size[1],
    limits=(
        cuda.moved(lambda size: 16 * size[0] * size[1] + 64 * size[0], _PASSES, 1.02, _STRETCH),
    ),
    tolerance=1e-4,
    known=_known,
    means={
        Kind.RACE: _ROWS,
        Kind.TWO_WRITERS: lambda fault: _ROWS if fault.array == "dweight" else _PLACE,
        Kind.READ_OUTSIDE: lambda fault: _ONE if fault.array in ("mean", "rstd") else _BOUNDS,
        Kind.SHUFFLE_MISSED: "All lanes meet, also those whose part of the row has ended.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """One row, several, many; sectors."""
    return cuda.check(TASK, work)
