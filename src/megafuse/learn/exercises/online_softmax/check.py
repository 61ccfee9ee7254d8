"""softmax of each row by a warp, in two readings."""

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


def _make(size: Size, device: str) -> Arrays:
    rows, cols, scale = size
    x = cuda.random(rows, cols, device=device, scale=float(scale))
    if scale > 50:  # a row that is masked but for its second half
        x[0, : cols // 2] = -torch.inf
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
_PASSES = (
    "x is read three times: for the largest, for the sum, for the result. The first two can be "
    "one: keep m and s together, and when a larger x comes, multiply s by exp(old m - new m). "
    "That is how attention is computed without its matrix, too."
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x = arrays["x"].double()
    rows, cols = x.shape
    m = torch.full((rows, 32), -3e38, dtype=x.dtype, device=x.device)
    s, unmended = torch.zeros_like(m), torch.zeros_like(m)
    for part in F.pad(x, (0, -cols % 32), value=-torch.inf).split(32, -1):
        larger = torch.maximum(m, part)
        s = s * torch.exp(m - larger) + torch.exp(part - larger)
        unmended = unmended + torch.exp(part - larger)
        m = larger
    largest = m.amax(-1, keepdim=True)

    def result(total: Tensor) -> Tensor:
        return torch.exp(x - largest) / total

    met = (s * torch.exp(m - largest)).sum(-1, keepdim=True)
    own = [each.repeat(1, -(-cols // 32))[:, :cols] for each in (m, s)]
    told = "Every lane divided by its own sum: the lanes' pairs have not met."
    yield "out", told, torch.exp(x - own[0]) / own[1]
    told = "The lanes' sums were added as they are, though each belongs to another largest."
    yield "out", told, result(s.sum(-1, keepdim=True))
    told = "A lane's sum stayed as it was when a larger x came: it is not multiplied."
    yield "out", told, result((unmended * torch.exp(m - largest)).sum(-1, keepdim=True))
    yield "out", "The division by the sum is missing.", result(torch.ones_like(met))
    told = "The row's largest is not subtracted where the result is written: exp(x - m)."
    yield "out", told, torch.exp(x) / met
    # Pairs that meet in five rounds, wrongly.
    low, sums, down = m.clone(), s.clone(), (m.clone(), s.clone())
    lane = torch.arange(32, device=x.device)
    for d in (16, 8, 4, 2, 1):
        other, theirs = low[:, lane ^ d], sums[:, lane ^ d]
        low = torch.maximum(low, other)
        sums = sums + theirs * torch.exp(other - low)
        from_lane = torch.where(lane + d < 32, lane + d, lane)
        om, os = down[0][:, from_lane], down[1][:, from_lane]
        both = torch.maximum(down[0], om)
        down = both, down[1] * torch.exp(down[0] - both) + os * torch.exp(om - both)
    wide = [each.repeat(1, -(-cols // 32))[:, :cols] for each in (sums, *down)]
    told = "Where pairs meet, m was changed before s was corrected by it: m - m is 0."
    yield "out", told, result(wide[0])
    told = "With __shfl_down_sync only lane 0 gets the row's pair; with __shfl_xor_sync all do."
    yield "out", told, torch.exp(x - wide[1]) / wide[2]


TASK = Task(
    kernel=Kernel("softmax", "IOii"),
    launch=lambda size: Launch((cuda.blocks(size[0], 4),), (128,), size[:2]),
    make=_make,
    exact=_exact,
    cases=(
        Case("rows of 32", (4, 32, 1), _FORMULA),
        Case("rows of 77", (5, 77, 3), _FORMULA),
        Case("far from 0", (4, 200, 100), _FAR),
        Case("rows of 1,024", (4, 1024, 2), _FORMULA),
    ),
    large=(1 << 13, 1 << 12, 2),
    least=lambda size: 8 * size[0] * size[1],
    operations=lambda size: 6 * size[0] * size[1],
    limits=(cuda.moved(lambda size: 12 * size[0] * size[1], _PASSES, 1.02),),
    tolerance=2e-6,
    known=_known,
    means={
        Kind.SHUFFLE_MISSED: "All lanes meet, also those whose part of the row has ended.",
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Values near 0 and far from it, a masked row; how often x is read."""
    return cuda.check(TASK, work)
