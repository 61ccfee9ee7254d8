"""softmax of each row by a warp, in two readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn.exercises import cuda, online
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Known, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work


def _make(size: Size, device: str) -> Arrays:
    rows, cols, scale = size
    x = cuda.random(rows, cols, device=device, scale=float(scale))
    if scale > 50:
        x[0, : cols // 2] = -torch.inf  # a row that is masked but for its second half
        x[1] -= 2000  # and one far below 0
    return {"x": x, "out": cuda.empty(rows, cols, device=device)}


def _exact(arrays: Arrays) -> Arrays:
    return {"out": arrays["x"].double().softmax(-1)}


_FORMULA = (
    "out = exp(x - m) / s, with m the largest of the row and s the sum of exp(x - m). Everyone "
    "needs the row's m and s, not the lane's own: the lanes' pairs must be brought together. When "
    "two pairs meet, m is the larger of the two, and each sum is multiplied by exp(its m - m). "
    "When a lane finds a larger x, its own sum must be multiplied too."
)
_FAR = (
    "Values of some hundreds: exp(100) is more than a float holds, and inf / inf is nan, so the "
    "largest is subtracted before exp. And where everything so far is -inf (masked), m - m is "
    "-inf - (-inf), which is nan: begin with a large negative number that is not -INFINITY, or ask."
)
_BEGINS = (
    "A row around -2,000 came out as nan: m began above all its floats, and stayed there, so that "
    "every exp(x - m) is 0, and 0 / 0 is nan. m begins with a number below any float, -3e38f."
)
_STRETCH = cuda.stretch("lane l takes floats l, l + 32, l + 64, …")
_ROUNDS = (16, 8, 4, 2, 1)
_DIVIDES = r"/(?!=)\s*(?!32\b|2\b)[\w(]"  # by something of the learner's
_PASSES = (
    "x is read three times: for the largest, for the sum, for the result. The first two can be "
    "one: keep m and s together, and when a larger x comes, multiply s by exp(old m - new m). "
    "That is how attention is computed without its matrix, too."
)


def _known(arrays: Arrays) -> Iterator[Known]:
    x = arrays["x"].double()
    rows, cols = x.shape
    m = torch.full((rows, 32), -3e38, dtype=x.dtype, device=x.device)
    s, unmended, turned, bare = (torch.zeros_like(m) for _ in range(4))
    for part in F.pad(x, (0, -cols % 32), value=-torch.inf).split(32, -1):
        larger = torch.maximum(m, part)
        s = s * torch.exp(m - larger) + torch.exp(part - larger)
        unmended = unmended + torch.exp(part - larger)
        turned = turned * torch.exp(m - larger) + torch.exp(larger - part).nan_to_num(posinf=0.0)
        bare = bare * torch.exp(m - larger) + torch.exp(part)
        m = larger
    largest = m.amax(-1, keepdim=True)

    def result(total: Tensor) -> Tensor:
        return torch.exp(x - largest) / total

    def wide(lanes: Tensor) -> Tensor:
        return lanes.repeat(1, -(-cols // 32))[:, :cols]

    met = (s * torch.exp(m - largest)).sum(-1, keepdim=True)
    own = [wide(m), wide(s)]
    told = "Every lane divided by its own sum: the lanes' pairs have not met."
    yield "out", told, torch.exp(x - own[0]) / own[1]
    told = "The lanes' sums were added as they are, though each belongs to another largest."
    yield "out", told, result(s.sum(-1, keepdim=True))
    told = "A lane's sum stayed as it was when a larger x came: it is not multiplied."
    yield "out", told, result((unmended * torch.exp(m - largest)).sum(-1, keepdim=True))
    told = "The largest have met, the sums have not: every lane divides by its own s."
    yield "out", Look.having(_DIVIDES, told), result(own[1])
    yield "out", "The division by the sum is missing.", result(torch.ones_like(met))
    told = "What a float adds is turned round: it adds exp(x - m), not exp(m - x)."
    yield "out", told, result((turned * torch.exp(m - largest)).sum(-1, keepdim=True))
    told = "A float added exp(x) to the sum, without the largest: it adds exp(x - m)."
    yield "out", told, result((bare * torch.exp(m - largest)).sum(-1, keepdim=True))
    yield "out", "It is multiplied by the sum: out = exp(x - m) / s.", result(1 / met)
    told = "Every lane's first float is in the sum twice: m begins with it, so s must begin with 0."
    first = torch.exp(x[:, :32] - largest).sum(-1, keepdim=True)
    yield "out", told, result(met + first)
    below = x.amax(-1, keepdim=True) < -88  # exp(x) is 0 there
    yield "out", _BEGINS, torch.where(below, torch.nan, result(met))
    told = "The sums have met, the largest have not: every lane still subtracts its own m."
    yield "out", told, torch.exp(x - own[0]) / s.sum(-1, keepdim=True)
    told = "A pair's other sum, os, was added as it is: it is multiplied by exp(its m - m), too."
    uncorrected = _pairs(m, s, lambda s, m, os, om, both: s * (m - both).exp() + os)
    yield "out", told, result(wide(uncorrected[1]))
    told = "m stayed as it was where pairs met, and s was corrected for the larger one: m = both."
    yield "out", told, torch.exp(x - own[0]) / wide(_stayed(m, s))
    for missing in _ROUNDS:
        pair = _pairs(m, s, _right, [d for d in _ROUNDS if d != missing])
        high, sums = map(wide, pair)
        told = f"The round d = {missing} is missing: every lane has the pair of 16 lanes."
        yield "out", told, torch.exp(x - high) / sums
    told = "The row's largest is not subtracted where the result is written: exp(x - m)."
    yield "out", told, torch.exp(x) / met
    # Pairs that meet in five rounds, wrongly.
    down = m.clone(), s.clone()
    lane = torch.arange(32, device=x.device)
    for d in (16, 8, 4, 2, 1):
        from_lane = torch.where(lane + d < 32, lane + d, lane)
        om, os = down[0][:, from_lane], down[1][:, from_lane]
        both = torch.maximum(down[0], om)
        down = both, down[1] * torch.exp(down[0] - both) + os * torch.exp(om - both)
    told = "Where pairs meet, m was changed before s was corrected by it: m - m is 0."
    changed = _pairs(m, s, lambda s, m, os, om, both: s + os * (om - both).exp())
    yield "out", told, result(wide(changed[1]))
    told = "With __shfl_down_sync only lane 0 gets the row's pair; with __shfl_xor_sync all do."
    yield "out", told, torch.exp(x - wide(down[0])) / wide(down[1])


Meeting = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _right(s: Tensor, m: Tensor, os: Tensor, om: Tensor, both: Tensor) -> Tensor:
    return s * torch.exp(m - both) + os * torch.exp(om - both)


def _pairs(
    m: Tensor, s: Tensor, meeting: Meeting, rounds: Iterable[int] = _ROUNDS
) -> tuple[Tensor, Tensor]:
    """Lanes' pairs after these rounds of __shfl_xor_sync; `meeting` is the sum of two."""
    lane = torch.arange(32, device=m.device)
    for d in rounds:
        om, os = m[:, lane ^ d], s[:, lane ^ d]
        both = torch.maximum(m, om)
        m, s = both, meeting(s, m, os, om, both)
    return m, s


def _stayed(m: Tensor, s: Tensor) -> Tensor:
    """The lanes' sums, where m is never changed."""
    lane = torch.arange(32, device=m.device)
    for d in _ROUNDS:
        om, os = m[:, lane ^ d], s[:, lane ^ d]
        s = _right(s, m, os, om, torch.maximum(m, om))
    return s


TASK = Task(
    kernel=Kernel("softmax", "IOii"),
    launch=lambda size: Launch((cuda.blocks(size[0], 4),), (128,), size[:2]),
    make=_make,
    exact=_exact,
    cases=(
        Case("rows of 32", (4, 32, 1), _FORMULA),
        Case("rows of 77", (5, 77, 3), _FORMULA),
        Case("far from 0", (4, 200, 100), _FAR),
        Case("rows of 20", (5, 20, 1), _FORMULA),
        Case("rows of 1,024", (4, 1024, 2), _FORMULA),
    ),
    large=(1 << 13, 1 << 12, 2),
    least=lambda size: 8 * size[0] * size[1],
    operations=lambda size: 6 * size[0] * size[1],
    limits=(cuda.moved(lambda size: 12 * size[0] * size[1], _PASSES, 1.02, _STRETCH),),
    tolerance=2e-6,
    known=_known,
    never=(online.TURNED,),
    means={
        Kind.SHUFFLE_MISSED: "All lanes meet, also those whose part of the row has ended.",
        Kind.READ_OUTSIDE: "A row has cols floats, the last of them at row * cols + cols - 1.",
        Kind.TWO_WRITERS: (
            "Two warps write the same row: warp threadIdx.x / 32 of a block has row blockIdx.x * 4 "
            "+ threadIdx.x / 32, and its element c lies at row * cols + c."
        ),
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Values near 0 and far from it, a masked row; how often x is read."""
    return cuda.check(TASK, work)
