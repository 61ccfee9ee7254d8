"""out[r][c] = x[r][c] + bias[c] on a grid of two dimensions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work


def _make(size: Size, device: str) -> Arrays:
    rows, cols = size
    return {
        "x": cuda.random(rows, cols, device=device),
        "bias": cuda.random(cols, device=device),
        "out": cuda.empty(rows, cols, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    return {"out": arrays["x"].double() + arrays["bias"].double()}


def _launch(size: Size) -> Launch:
    longer = max(size)
    return Launch((cuda.blocks(longer, 32), cuda.blocks(longer, 8)), (32, 8), size)


_BLOCK = (
    "Row and column of a thread: the block's place in the grid times the block's size, plus the "
    "thread's place in the block, for x and for y. nan: no thread wrote there."
)
_ROWS = (
    "In memory a matrix is one row after the other, so element (r, c) lies at r * cols + c, with "
    "the length of a row, not their number."
)
_BOUNDS = (
    "Where the matrix is no multiple of the block, some threads have a row that does not exist, "
    "some a column, and both must be asked: a column that is too large is no error of memory, it "
    "is the next row's beginning."
)
_RACE = (
    "A thread whose column lies behind the end of its row lands in the next row, where another "
    "thread works: c < cols must be asked too, not only r < rows. Or two blocks have the same "
    "elements: blockIdx.x or blockIdx.y does not count for the row or the column."
)
_APART = (
    "Right, and slow: threadIdx.x is the one that changes from lane to lane of a warp. Where it "
    "counts rows, the 32 lanes touch 32 rows, a sector each; where it counts columns, they touch "
    "neighbours, 4 sectors together. x goes along the row."
)


def _outside(fault: Fault) -> str:
    if fault.array == "bias":
        told = "bias has a number for each column: it is taken at c alone, where c is below cols."
        return f"{told} {_BOUNDS}"
    return _BOUNDS


_LOOKS = (
    Look.having(r"\|\|", "`||` lets a thread through that is inside one way: both must hold, &&."),
    Look.having(
        r"\br\s*<=?\s*cols|\bc\s*<=?\s*rows\b(?!\s*\*)",
        "Rows and columns have changed places where they are bounded: r < rows and c < cols.",
    ),
    Look.having(r"<=\s*(?:rows|cols)", "`<=` lets one too many through: the last row is rows - 1."),
    Look.without(r"blockIdx\.x", "blockIdx.x does not count: all blocks side by side do the same."),
    Look.without(
        r"blockIdx\.y", "blockIdx.y does not count: all blocks below each other do the same."
    ),
    Look.having(
        r"blockIdx\.x\s*\*\s*(?!blockDim\.x)\w+\.|blockIdx\.y\s*\*\s*(?!blockDim\.y)\w+\.",
        "A block is blockDim.x wide and blockDim.y high: blockIdx.x goes with blockDim.x, and "
        "blockIdx.y with blockDim.y.",
    ),
    Look.having(r"\br\s*\*\s*rows", f"Row r was taken from r * rows on. {_ROWS}"),
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x, bias = arrays["x"].double(), arrays["bias"].double()
    if x.shape[0] <= len(bias):
        by_row = x + bias[: x.shape[0], None]
        yield "out", "The bias was taken by row, bias[r]: each column has its own, bias[c].", by_row
    at = torch.arange(x.numel(), device=x.device)
    yield "out", "The bias is a factor: it is added.", x * bias
    yield (
        "out",
        "The bias was taken at threadIdx.x, which is a place in the block: bias[c].",
        (x + bias[torch.arange(len(bias), device=x.device) % 32]),
    )
    turned = x.flatten().view(x.shape[1], x.shape[0]).t() + bias
    told = "x is read at c * rows + r and written at r * cols + c: rows became columns."
    yield "out", told, turned
    down = x + bias[at // x.shape[0]].reshape(x.shape)
    yield "out", f"The matrix was walked down its columns, at c * rows + r. {_ROWS}", down


TASK = Task(
    kernel=Kernel("add_bias", "IIOii"),
    launch=_launch,
    make=_make,
    exact=_exact,
    cases=(
        Case("8 × 32", (8, 32), _BLOCK),
        Case("64 × 96", (64, 96), _BLOCK + " " + _ROWS),
        Case("33 × 70", (33, 70), _BOUNDS),
        Case("64 × 128", (64, 128), _ROWS),
    ),
    large=(8192, 2048),
    least=lambda size: 8 * size[0] * size[1] + 4 * size[1],
    operations=lambda size: size[0] * size[1],
    limits=(cuda.moved(lambda size: 12 * size[0] * size[1], _APART),),
    tolerance=1e-6,
    known=_known,
    looks=_LOOKS,
    means={Kind.TWO_WRITERS: _RACE, Kind.READ_OUTSIDE: _outside, Kind.WRITTEN_OUTSIDE: _BOUNDS},
)


def check(work: Work) -> Iterator[Finding]:
    """A matrix that fits, ones that do not; then sectors."""
    return cuda.check(TASK, work)
