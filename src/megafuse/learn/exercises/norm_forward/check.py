"""LayerNorm(x + residual) by a warp, each float read once."""

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
    rows, cols, mean = size
    return {
        "x": cuda.random(rows, cols, device=device, mean=float(mean)),
        "residual": cuda.random(rows, cols, device=device),
        "weight": cuda.random(cols, device=device),
        "bias": cuda.random(cols, device=device),
        "out": cuda.empty(rows, cols, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    x, residual, weight, bias = (
        arrays[name].double() for name in ("x", "residual", "weight", "bias")
    )
    sums = (x.float() + residual.float()).double()  # as float32 has them: the rest is judged
    return {"out": F.layer_norm(sums, weight.shape, weight, bias, _EPS)}


_FORMULA = (
    "s = x + residual; out = (s - mean) / sqrt(variance + 1e-5) * weight + bias, with the mean and "
    "variance of its own row, of all 32 lanes' parts, divided by cols and not by cols - 1; weight "
    "and bias go with the column."
)
_SHORT = (
    "Rows of 100 floats leave places of the kept array without one. They add 0 to the sum, and "
    "must add nothing to the squares: 0 - mean is not 0."
)
_FAR = (
    "Around 1,000 the mean of s² and the square of the mean agree in nearly all their digits, and "
    "what is left is noise. Sum the squares of s - mean instead: the row is at hand, so that "
    "second pass costs no memory."
)
_PASSES = (
    "Three passes over x and residual. A row of at most 1,024 floats is 32 for each lane: they "
    "fit in registers. Load x + residual once into `float kept[32]`, and take mean, variance and "
    "result from there. The loops over it must have a fixed count, so that the compiler can give "
    "each place a register."
)


def _norm(s: Tensor, mean: Tensor, subtracted: Tensor | None = None) -> Tensor:
    """With another mean than its own."""
    variance = (s - mean).square().mean(-1, keepdim=True)
    return (s - (mean if subtracted is None else subtracted)) * (variance + _EPS).rsqrt()


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x, residual, weight, bias = (
        arrays[name].double() for name in ("x", "residual", "weight", "bias")
    )
    s = (x.float() + residual.float()).double()
    norm = F.layer_norm(s, weight.shape, None, None, _EPS)
    alone = F.layer_norm(x, weight.shape, weight, bias, _EPS)
    yield "out", "The residual is left out: that is the norm of x alone.", alone
    variance, mean = torch.var_mean(s, -1, keepdim=True)
    wrong = (s - mean) * (variance + _EPS).rsqrt() * weight + bias
    yield "out", "The variance was divided by cols - 1.", wrong
    yield "out", "The bias is left out.", norm * weight
    yield "out", "The weight is left out.", norm + bias
    yield "out", "The mean is not divided by cols.", _norm(s, s.sum(-1, True)) * weight + bias
    yield (
        "out",
        "The mean is not subtracted in the result.",
        _norm(s, mean, 0 * mean) * weight + bias,
    )
    scale = (s.var(-1, correction=0, keepdim=True) + _EPS).sqrt()
    told = "It was multiplied by the root of the variance, not divided: rsqrtf is 1 / sqrt."
    yield "out", told, (s - mean) * scale * weight + bias
    told = "The root is left out."
    yield "out", told, (s - mean) / scale**2 * weight + bias
    lanes = F.pad(s, (0, -s.shape[1] % 32)).reshape(len(s), -1, 32)
    own = (lanes.sum(1) / s.shape[1]).repeat(1, lanes.shape[1])[:, : s.shape[1]]
    away = (s - own).square().sum(-1, True) / s.shape[1]
    told = "Every lane subtracted its own mean: warp_sum brings the lanes' sums together."
    yield "out", told, (s - own) * (away + _EPS).rsqrt() * weight + bias
    squares = F.pad((s - mean).square(), (0, -s.shape[1] % 32)).reshape(lanes.shape).sum(1)
    own = (squares / s.shape[1]).repeat(1, lanes.shape[1])[:, : s.shape[1]]
    told = "Every lane divided by its own variance: warp_sum brings the lanes' squares together."
    yield "out", told, (s - mean) * (own + _EPS).rsqrt() * weight + bias
    told = "The bias was taken by row, bias[row]."
    yield "out", told, norm * weight + bias[: len(s), None]
    by_row = weight[: len(s), None]
    yield "out", "The weight was taken by row, weight[row].", norm * by_row + bias


TASK = Task(
    kernel=Kernel("residual_norm", "IIIIOii"),
    launch=lambda size: Launch((cuda.blocks(size[0], 4),), (128,), size[:2]),
    make=_make,
    exact=_exact,
    cases=(
        Case("rows of 100", (5, 100, 3), _SHORT + " " + _FORMULA),
        Case("rows of 1,024", (4, 1024, 0), _FORMULA),
        Case("around 1,000", (4, 256, 1000), _FAR),
        Case("rows of 512", (4, 512, 0), _FORMULA),
    ),
    large=(1 << 14, 1024, 0),
    least=lambda size: 12 * size[0] * size[1] + 8 * size[1],
    operations=lambda size: 9 * size[0] * size[1],
    limits=(cuda.moved(lambda size: 20 * size[0] * size[1], _PASSES, 1.02),),
    tolerance=1e-3,
    known=_known,
    means={
        Kind.SHUFFLE_MISSED: "All lanes meet, also those whose part of the row has ended.",
        Kind.READ_OUTSIDE: "Places of the kept array behind the row's end have no float to load.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Short rows, far from 0, long rows; how often each float is read."""
    return cuda.check(TASK, work)
