"""Values that overflow and cancel, against float64; and the reads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from megafuse.learn.exercises import online, patterns, roof, tensors
from megafuse.learn.exercises.emulator.source import without_comments
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.native import Counts, Native
from megafuse.learn.exercises.work import Work

_VARIANCE, _SOFTMAX = 0, 1
_N = 40_000
_OPERATIONS = 6  # an element of the softmax: twice x - largest and exp, a sum, a product


def check(work: Work) -> Iterator[Finding]:
    """First the variance, then the softmax."""
    native = work.native()
    turned = online.TURNED.seen(without_comments(work.path.read_text(encoding="utf-8")))
    yield from _variance(native)
    moved = yield from _softmax(native, turned)
    n = 1 << 22
    x, out = torch.randn(n) * 100, patterns.blank(n)
    native.plain({"x": x, "out": out}, (n, _SOFTMAX))
    yield _shares("at full speed", x, out, _OVERFLOWS)
    call = lambda: native.plain({"x": x, "out": out}, (n, _SOFTMAX))  # noqa: E731
    yield roof.share(
        *(call, 3 * x.nbytes, "cpu", _ROOF),
        threads=1,
        operations=_OPERATIONS * n,
        moved=moved * n,
    )


def _variance(native: Native) -> Iterator[Finding]:
    for what, mean, says in (("variance", 0.5, _DIVIDE), ("around 10,000", 1e4, _CANCELS)):
        x, out = torch.randn(_N) * 1.5 + mean, patterns.blank(1)
        counts = native.counted({"x": x, "out": out}, (_N, _VARIANCE))
        exact = x.double().var(correction=0).reshape(1)
        finding = tensors.close(what, out, exact, torch.float32, 0.01, says)
        yield finding if finding.ok else replace(finding, says=_named(out, x.double(), exact, says))
    yield _reads("reads", counts, 1)


def _named(out: Tensor, x: Tensor, exact: Tensor, says: str) -> str:
    """The mistake whose result comes nearest: in one float32 sum it is not met to many digits."""
    off = {
        told: float((out - wrong).abs() / wrong.abs()) for told, wrong in _known_variances(x, exact)
    }
    told = min(off, key=lambda told: off[told])
    if out.isnan():
        return f"{_FIRST}\n\n{_DIVIDE}"
    return f"{told}\n\n{_DIVIDE}" if off[told] < 0.01 else says


def _known_variances(x: Tensor, exact: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "That is the root of the variance: there is none in it.", exact.sqrt()
    yield "The sum of squares is not divided by n.", exact * len(x)
    count = torch.arange(1, len(x) + 1, dtype=x.dtype)
    means = x.cumsum(0) / count
    before = x - torch.cat([torch.zeros(1, dtype=x.dtype), means[:-1]])
    told = "Both distances are from the old mean: one is from the old, one from the new."
    yield told, before.square().mean().reshape(1)


def _softmax(native: Native, turned: bool) -> Generator[Finding, None, float]:
    """Returns the bytes that it moved for each element."""
    masked = torch.randn(_N)
    masked[:100] = masked[5000:6000] = -torch.inf
    rising = torch.linspace(-50, 400, _N)
    cases = (
        ("softmax", torch.randn(_N), _SUM),
        ("up to 400", rising, _OVERFLOWS),
        ("masked", masked, _MASKED),
        ("below 0", torch.randn(_N) - 200, _BELOW),
    )
    for what, x, says in cases:
        out = patterns.blank(*x.shape)
        counts = native.counted({"x": x, "out": out}, (_N, _SOFTMAX))
        yield _shares(what, x, out, says, turned)
    yield _reads("reads", counts, 2)
    return counts.bytes_moved / _N


def _shares(what: str, x: Tensor, out: Tensor, says: str, turned: bool = False) -> Finding:
    """In units of the largest share, which is small where many have one."""
    exact = torch.softmax(x.double(), 0)
    unit = float(exact.max())
    known = ((told, wrong / unit) for told, wrong in _known_shares(x.double()))
    known = ((online.TURNED.says, out.double() / unit) for _ in range(1)) if turned else known
    finding = tensors.close(what, out / unit, exact / unit, torch.float32, 1e-3, says, known)
    if finding.ok:
        return finding
    wrong = (out.double() - exact).abs().nan_to_num(torch.inf).argmax()
    found = f"[{int(wrong)}] is {float(out[wrong]):.3g}, expected {float(exact[wrong]):.3g}"
    return replace(finding, found=found)


def _known_shares(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What typical mistakes in the one pass give; `so_far` is the largest before each element."""
    largest = x.max()
    terms = torch.exp(x - largest)
    held = x.cummax(0).values.clamp(min=-3e38)
    so_far = torch.cat([x.new_full((1,), -3e38), held[:-1]])
    new = x > so_far
    yield "The division by the sum is missing.", terms
    told = "The largest is not subtracted where the result is written: exp(x - largest) / sum."
    yield told, torch.exp(x) / terms.sum()
    added = torch.exp(x - torch.maximum(x, so_far))
    told = "The sum stayed as it was when a larger one came: it is multiplied by exp(old - new)."
    yield told, terms / added.sum()
    told = (
        "The sum began anew when a larger one came: what was in it still counts, by exp(old - new)."
    )
    last = int(new.nonzero()[-1])
    yield told, terms / terms[last:].sum()
    told = "A larger one corrects the sum and adds nothing itself: it adds exp(0), which is 1."
    yield told, terms / terms[~new].sum()
    told = "An element added exp(x) to the sum, without the largest: it adds exp(x - largest)."
    corrected = torch.exp(held - largest)  # what later corrections leave of a term
    yield told, terms / torch.where(new, terms, torch.exp(x) * corrected).sum()


def _reads(what: str, counts: Counts, goal: int) -> Finding:
    each = counts.read_elements / _N
    ok = each <= goal + 0.01
    goals = {1: "once", 2: "twice"}
    often = goals.get(round(each), f"{each:.0f} times")
    found = f"each element {often}, {counts.bytes_moved / _N:.0f} bytes; goal: {goals[goal]}"
    return Finding(what, ok, found, "" if ok else _PASSES.format(often=often, goal=goals[goal]))


_DIVIDE = "The variance is the mean of (x - mean)², divided by n."
_CANCELS = (
    "Around 10,000 the mean of x² and the square of the mean are both near 100,000,000, where "
    "float32 steps by 8. Their difference should be about 2: nothing of it is left. Sum squares of "
    "distances from something near the mean, not of x itself."
)
_SUM = "The softmax is exp(x) divided by the sum of all exp(x), so the results add up to 1."
_OVERFLOWS = (
    "exp(89) is beyond float32's largest number: the sum is inf, and inf / inf is nan. Numerator "
    "and sum may both be divided by exp(largest x), which makes every term at most 1; and the "
    "largest so far can be corrected on the way, in the same loop."
)
_MASKED = (
    "A masked place is -inf and its share is 0. Where nothing larger has come yet, -inf - (-inf) "
    "is nan, and one nan spoils the sum. Begin with a largest that is finite."
)
_BELOW = (
    "Around -200 every exp(x) is 0, and 0 / 0 is nan: the largest so far must begin below any "
    "float, with -3e38f, so that the first element replaces it."
)
_FIRST = "nan: the first element is divided by 0. With i elements before it, it is number i + 1."
_PASSES = (
    "Each element is read {often}, and {goal} would do. A stable result with one pass "
    "more is the easy way; hold the answer for the elements so far, and correct it, and the pass "
    "is not needed."
)
_ROOF = (
    "The share of the roof is that of the softmax in one thread. Its exp is a call of the C "
    "library for each float; megafuse has its own, which the compiler can run on vectors "
    "(kernels/math.h)."
)
