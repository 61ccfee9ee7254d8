"""LayerNorm(x + residual) by a warp, each float read once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Known, Launch, Size, Task
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_EPS = 1e-5


def _make(size: Size, device: str) -> Arrays:
    rows, cols, mean, thousandths = size
    scale = thousandths / 1000
    return {
        "x": cuda.random(rows, cols, device=device, mean=float(mean), scale=scale),
        "residual": cuda.random(rows, cols, device=device, scale=scale),
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
_SMALL = (
    "Floats that hardly differ: their variance is about as large as 1e-5, so that it counts where "
    "1e-5 is added. It belongs under the root: 1 / sqrt(variance + 1e-5)."
)
_STRETCH = cuda.stretch("kept[k] is column k * 32 + lane, not lane * 32 + k.")
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


def _known(arrays: Arrays) -> Iterator[Known]:
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
    variance = s.var(-1, correction=0, keepdim=True)
    for told, wrong in (
        ("1e-5 is left out.", variance.rsqrt()),
        ("1e-5 is added to the root: it belongs under it.", 1 / (variance.sqrt() + _EPS)),
        (
            "1e-5 is added to the sum of the squares: it belongs to their mean, the variance.",
            (variance + _EPS / s.shape[1]).rsqrt(),
        ),
    ):
        yield "out", told, (s - mean) * wrong * weight + bias
    yield from _padded(s, weight, bias)
    yield from _misplaced(s, x, residual, weight, bias)
    scale = (variance + _EPS).sqrt()
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


_KEPT = cuda.Look.having(
    r"float\s+kept\[([1-9]|[12]\d|3[01])\]",
    "A row has up to 1,024 floats, which are 32 for each of the 32 lanes: an array of fewer places "
    "does not hold them, and what is written behind its end destroys other variables.",
)
_FEWER = cuda.Look.having(
    r"float\s+kept\[32\][\s\S]*\bk\s*<\s*([1-9]|[12]\d|3[01])\s*;",
    "A row has up to 1,024 floats, which are 32 for each of the 32 lanes: a loop of fewer rounds "
    "leaves the rest of a long row out.",
)


def _two_writers(fault: Fault) -> str:
    if fault.array == "out":
        return "Two warps write the same row: element c of a row lies at out[row * cols + c]."
    return (
        f"All threads of the block have the same array {fault.array}. What a lane keeps is its "
        "own: `float kept[32]`, without __shared__, is registers."
    )


def _around(s: Tensor, mean: Tensor) -> Tensor:
    return (s - mean).square().mean(-1, keepdim=True)


def _padded(s: Tensor, weight: Tensor, bias: Tensor) -> Iterator[Known]:
    """Divided by another number than cols; and the places of `kept` that have no float."""
    cols, mean = s.shape[1], s.mean(-1, keepdim=True)
    variance = _around(s, mean)
    for other in {1024, 32, -(-cols // 32) * 32, len(s)} - {cols}:
        said = f"was divided by {other}, not by cols: a row of {cols} floats has {cols}."
        wrong = mean * cols / other
        norm = (s - wrong) * (_around(s, wrong) + _EPS).rsqrt()
        yield "out", f"The sum {said}", norm * weight + bias
        norm = (s - mean) * (variance * cols / other + _EPS).rsqrt()
        yield "out", f"The sum of the squares {said}", norm * weight + bias
        norm = (s - wrong) * (_around(s, wrong) * cols / other + _EPS).rsqrt()
        yield "out", f"Each of the two sums {said}", norm * weight + bias
    whole = cols // 32 * 32
    kept = s.clone()
    kept[:, whole:] = 0
    wrong = kept.mean(-1, keepdim=True)
    norm = (kept - wrong) * (_around(kept, wrong) + _EPS).rsqrt()
    told = "The last columns were not loaded: with cols / 32 a last part that is not whole is lost."
    yield "out", told, norm * weight + bias
    places = 1024 - cols
    told = "The empty places of `kept` are in the squares: 0 - mean is not 0, and must not count."
    extra = variance + places * mean.square() / cols
    yield "out", told, (s - mean) * (extra + _EPS).rsqrt() * weight + bias
    told = "That is the sum of the squares of s: those of s - mean belong there."
    squares = s.square().mean(-1, keepdim=True)
    yield "out", told, (s - mean) * (squares + _EPS).rsqrt() * weight + bias
    told = "That is the mean distance from the mean: distances are squared before they are added."
    distance = (s - mean).abs().mean(-1, keepdim=True)
    yield "out", told, (s - mean) * (distance + _EPS).rsqrt() * weight + bias


def _misplaced(
    s: Tensor, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> Iterator[Known]:
    """The right parts, in another order."""
    norm = F.layer_norm(s, weight.shape, None, None, _EPS)
    scaled = F.layer_norm(s * weight, weight.shape, None, None, _EPS)
    told = "The weight is applied before the norm: it belongs after it."
    yield "out", told, scaled + bias
    yield "out", told, scaled * weight + bias
    after = F.layer_norm(x, weight.shape, weight, bias, _EPS) + residual
    yield "out", "The residual is added after the norm: it is part of what is normalised.", after
    yield "out", "The bias is multiplied by the weight: it is added last.", (norm + bias) * weight
    told = "weight and bias are added before the product: it is norm * weight + bias."
    yield "out", told, norm * (weight + bias)
    lanes = torch.arange(s.shape[1], device=s.device)
    for name, place in (("lane", lanes % 32), ("k", lanes // 32)):
        told = f"weight or bias were taken at [{name}]: they go with the column, c = k * 32 + lane."
        yield "out", told, norm * weight[place] + bias
        yield "out", told, norm * weight + bias[place]
        yield "out", told, norm * weight[place] + bias[place]


TASK = Task(
    kernel=Kernel("residual_norm", "IIIIOii"),
    launch=lambda size: Launch((cuda.blocks(size[0], 4),), (128,), size[:2]),
    make=_make,
    exact=_exact,
    cases=(
        Case("rows of 100", (5, 100, 3, 1000), _SHORT + " " + _FORMULA),
        Case("rows of 1,024", (4, 1024, 0, 1000), _FORMULA),
        Case("around 1,000", (4, 256, 1000, 1000), _FAR),
        Case("nearly constant", (3, 64, 0, 2), _SMALL),
        Case("rows of 512", (4, 512, 0, 1000), _FORMULA),
    ),
    large=(1 << 14, 1024, 0, 1000),
    least=lambda size: 12 * size[0] * size[1] + 8 * size[1],
    operations=lambda size: 9 * size[0] * size[1],
    limits=(cuda.moved(lambda size: 20 * size[0] * size[1], _PASSES, 1.02, _STRETCH),),
    tolerance=1e-3,
    known=_known,
    never=(_KEPT, _FEWER),
    means={
        Kind.SHUFFLE_MISSED: "All lanes meet, also those whose part of the row has ended.",
        Kind.READ_OUTSIDE: "Places of the kept array behind the row's end have no float to load.",
        Kind.TWO_WRITERS: _two_writers,
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Short rows, far from 0, long rows; how often each float is read."""
    return cuda.check(TASK, work)
