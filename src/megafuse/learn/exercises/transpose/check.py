"""A transposed matrix through a tile of shared memory: sectors, then banks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Size, Task
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work


def _make(size: Size, device: str) -> Arrays:
    rows, cols = size
    return {
        "x": cuda.random(rows, cols, device=device),
        "out": cuda.empty(cols, rows, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    return {"out": arrays["x"].double().t()}


_PLACES = (
    "out[c][r] = x[r][c]. The block of tile (blockIdx.y, blockIdx.x) writes tile (blockIdx.x, "
    "blockIdx.y), and inside the tile rows and columns change places when it is read."
)
_BOUNDS = (
    "50 × 70 has tiles that are not full: reading is bounded by rows and cols, and writing by cols "
    "and rows, since out has cols rows."
)
_EARLY = (
    "A thread writes out what other threads put into the tile: between the two there must be a "
    "__syncthreads()."
)
_APART = (
    "One side is read or written down the columns, a sector for each lane. threadIdx.x must go "
    "along a row twice: of x when it is read, of out when it is written. The tile turns it round."
)
_CONFLICT = (
    "Shared memory has 32 banks; word w lies in bank w % 32, and a bank gives one word at a time. "
    "Down a column of a tile that is 32 wide, the 32 lanes want 32 words of the same bank: 32 "
    "passes. With rows of 33 words, of which the last is never used, neighbours in a column lie in "
    "neighbouring banks."
)


_SAME_ROWS = (
    "Two threads of a block write the same element. Thread (x, y) has rows y, y + 8, y + 16 and "
    "y + 24 of the tile: k begins with threadIdx.y, and goes on by 8."
)
_TILE = "The tile has 32 rows of 32 floats: none may be shorter, and 33 keep the banks apart."
_ROW_OF_OUT = "A row of out is `rows` long: element (c, r) of out lies at c * rows + r."


def _outside(fault: Fault) -> str:
    if fault.array == "out":
        return f"{_ROW_OF_OUT} {_BOUNDS}"
    return _BOUNDS if fault.array == "x" else _TILE


def _two_writers(fault: Fault) -> str:
    return _SAME_ROWS if fault.within else _SAME_TILE


_SAME_TILE = (
    "Two blocks write the same tile. The blocks change places, too: tile (blockIdx.y, blockIdx.x) "
    "of x becomes tile (blockIdx.x, blockIdx.y) of out, and a row of out is `rows` long."
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x = arrays["x"].double()
    if x.shape == (32, 32):
        yield "out", "The tile came out as it went in: it was not turned.", x


TASK = Task(
    kernel=Kernel("transpose", "IOii"),
    launch=lambda size: Launch((cuda.blocks(size[1], 32), cuda.blocks(size[0], 32)), (32, 8), size),
    make=_make,
    exact=_exact,
    cases=(
        Case("one tile", (32, 32), _PLACES),
        Case("64 × 96", (64, 96), _PLACES),
        Case("50 × 70", (50, 70), _BOUNDS),
        Case("64 × 64", (64, 64), _PLACES),
    ),
    large=(4096, 4096),
    least=lambda size: 8 * size[0] * size[1],
    operations=lambda size: 0,
    limits=(
        cuda.moved(lambda size: 8 * size[0] * size[1], _APART),
        cuda.banks(_CONFLICT),
    ),
    known=_known,
    means={
        Kind.RACE: _EARLY,
        Kind.TWO_WRITERS: _two_writers,
        Kind.NEVER_WRITTEN: _BOUNDS,
        Kind.READ_OUTSIDE: _outside,
        Kind.WRITTEN_OUTSIDE: _outside,
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Tiles that fit and that do not; sectors; banks."""
    return cuda.check(TASK, work)
