"""Result, then how often each row comes from memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import patterns, roof, tensors
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.native import Native
from megafuse.learn.exercises.work import Work

_TOLERANCE = 2e-3
_OPERATIONS = 6  # an element: x - first, its sum, its square, their sum; x - mean, times scale
_FORMULA = (
    "Each row is (x - mean) / sqrt(variance + 1e-5) with its own mean and variance; the variance "
    "divides by cols, not by cols - 1. nan: never written, or the root of a negative number."
)


def check(work: Work) -> Iterator[Finding]:
    """The counted run comes first: it catches steps outside the arrays."""
    native = work.native()
    rows, cols = 3, 101
    arrays = _arrays(rows, cols)
    native.counted(arrays, (rows, cols))
    finding = _result("short rows", arrays)
    yield finding
    if not finding.ok:
        return
    small = _arrays(rows, cols, mean=0.0, scale=0.002)
    native.counted(small, (rows, cols))
    finding = _result("nearly constant", small)
    yield finding
    if not finding.ok:
        return
    rows, cols = 8, 1 << 15  # a row is four times the cache
    arrays = _arrays(rows, cols)
    counts = native.counted(arrays, (rows, cols))
    yield _result("long rows", arrays)
    each, least = counts.bytes_moved / (rows * cols), 12
    reads = counts.read_elements / (rows * cols)
    ok = each <= 1.05 * least
    found = f"{each:.1f} an element, goal {least}; each element is read {reads:.0f} times"
    yield Finding("bytes moved", ok, found, "" if ok else _why(reads))
    yield _far_from_zero(native)
    rows, cols = 64, 1 << 16
    large = _arrays(rows, cols)
    native.plain(large, (rows, cols))
    yield _result("at full speed", large)
    run = lambda: native.plain(large, (rows, cols))  # noqa: E731
    floats = rows * cols
    yield roof.share(
        *(run, least * floats, "cpu", _ROOF),
        threads=1,
        operations=_OPERATIONS * floats,
        moved=each * floats,
    )


def _arrays(rows: int, cols: int, mean: float = 3.0, scale: float = 2.0) -> dict[str, Tensor]:
    x = torch.randn(rows, cols) * scale + mean
    return {"x": x, "out": patterns.blank(rows, cols)}


def _exact(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x.double(), x.shape[-1:])


def _result(what: str, arrays: dict[str, Tensor]) -> Finding:
    x = arrays["x"]
    known = _known(x.double())
    return tensors.close(what, arrays["out"], _exact(x), torch.float32, _TOLERANCE, _FORMULA, known)


def _known(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    away = x - mean
    yield "The root is forgotten: it divides by the variance.", away / (variance + 1e-5)
    yield "The mean is not subtracted.", x * (variance + 1e-5).rsqrt()
    yield "It only subtracts the mean: the division is missing.", away
    scale, first = (variance + 1e-5).rsqrt(), x[:, :1]
    told = "The mean is one of distances from the first element: subtract that element, too."
    yield told, (x - (mean - first)) * scale
    told = "The first element is subtracted, and the mean of the distances from it is not."
    yield told, (x - first) * scale
    yield "1e-5 is left out.", away * variance.rsqrt()
    yield "1e-5 is added to the root: it belongs under it.", away / (variance.sqrt() + 1e-5)
    yield "It is multiplied by the root: it is divided by it.", away / scale
    told = "The mean of the distances from the first element is added: it is subtracted."
    yield told, (x - first + (mean - first)) * scale
    for around in (mean, first, torch.zeros_like(mean)):
        yield from _around(x, around)


def _around(x: Tensor, around: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Mistakes in sums of x - around and of its square."""
    cols, d = x.shape[-1], x - around
    sums, squares = d.sum(-1, keepdim=True), d.square().sum(-1, keepdim=True)
    mean = sums / cols

    def result(variance: Tensor, mean: Tensor = mean) -> Tensor:
        return (d - mean) * (variance + 1e-5).rsqrt()

    right = squares / cols - mean**2
    told = "The variance was divided by cols - 1."
    yield told, result(squares / (cols - 1) - mean**2)
    told = "The mean was divided by cols - 1."
    off = sums / (cols - 1)
    yield told, result(squares / cols - off**2, off)
    yield told, result(right, off)
    told = "The mean is subtracted from the mean of the squares: its square belongs there."
    yield told, result(squares / cols - mean)
    told = "The square of the mean is not subtracted: that is the mean of the squares alone."
    yield told, result(squares / cols)
    yield "The square of the mean is added: it is subtracted.", result(squares / cols + mean**2)
    yield "The sum of the squares is not divided by cols.", result(squares - mean**2)
    told = "The sums go on from row to row: they begin with 0 in each."
    grown = sums.cumsum(0) / cols
    yield told, result(squares.cumsum(0) / cols - grown**2, grown)
    told = "A quotient of two whole numbers is whole in C++: 1 / cols is 0, and so are the means."
    yield told, result(torch.zeros_like(mean), torch.zeros_like(mean))


def _far_from_zero(native: Native) -> Finding:
    """Told, not judged: the next exercise is about it."""
    arrays = _arrays(4, 4096, mean=1000.0)
    native.plain(arrays, (4, 4096))
    error = float((arrays["out"] - _exact(arrays["x"])).abs().max())
    good = error < 0.01
    found = f"rows around 1,000: largest error {error:.1e}" + ("" if good else ", digits were lost")
    return Finding("far from 0", None, found, "" if good else _CANCELS)


_CANCELS = (
    "Far from 0, the mean of x² and the square of the mean are two large numbers that agree in "
    "almost all their digits, and what is left of their difference is noise. Exercise 6 is about "
    "that."
)


_ROOF = (
    "The share of the roof is against a copy of 12 bytes an element. It can pass 100%, because "
    "this machine's own cache is larger than the 32 KiB that are counted with: it may still hold "
    "the row at the second reading. And a sum that the compiler may not reorder runs one "
    "addition at a time; `#pragma omp simd reduction(+ : sum)` above the loop allows it."
)


def _why(reads: float) -> str:
    return (
        f"Each element is read {reads:.0f} times, and since a row does not fit into the cache, "
        "each time from memory. The last loop needs the mean and the scale before it starts, so "
        "two readings are what is left: can one loop collect all that mean and variance need?"
    )
