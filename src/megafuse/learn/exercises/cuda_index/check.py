"""axpy: every block its own elements, none past the end, neighbours side by side."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from megafuse.learn.exercises.cuda import (
    Arrays,
    Case,
    Kernel,
    Launch,
    Look,
    Size,
    Task,
    blocks,
    empty,
    moved,
    random,
)
from megafuse.learn.exercises.cuda import check as checked
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_A = 1.5


def _make(size: Size, device: str) -> Arrays:
    (n,) = size
    return {
        "x": random(n, device=device),
        "y": random(n, device=device),
        "out": empty(n, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    return {"out": _A * arrays["x"].double() + arrays["y"].double()}


_ONE_BLOCK = (
    "A block of 128 threads with four elements each covers 512 elements, each once. nan: no thread "
    "wrote there."
)
_BLOCKS = (
    "With eight blocks the first 512 elements come out right and the rest was never written "
    "(nan), or goes wrong: threadIdx.x is a place within the block, and is the same in every "
    "block. Which 512 elements a block works on must come from blockIdx.x."
)
_BOUNDS = (
    "10,000 elements take 20 blocks of 512, and the last one has room for 240 too many. A "
    "thread whose i is not below n must do nothing."
)
_BLOCKS_OVERLAP = (
    "Two blocks write the same element. A block has 512 elements, 128 threads in four rounds: "
    "block b begins at 512 * b, and which 512 elements it works on must come from blockIdx.x, as "
    "blockIdx.x * blockDim.x * 4. threadIdx.x is the same in every block."
)
_ROUNDS_OVERLAP = (
    "Within a block two rounds or two threads overlap. A round is blockDim.x elements, one for "
    "each thread of the block: thread t takes elements t, t + blockDim.x, t + 2 * blockDim.x and "
    "t + 3 * blockDim.x of the block's."
)
_APART = (
    "Right, and slow. In each round the 32 threads of a warp access memory together, in sectors "
    "of 32 bytes, eight floats. Where thread t takes element 4 t + k, the warp's 32 elements lie "
    "spread over 16 sectors; where thread t takes element t of the round, they fill 4."
)


_CHANGED = Look.having(
    r"threadIdx\.x\s*\*\s*(4\s*\*\s*)?blockDim",
    "threadIdx.x and blockIdx.x have changed places: blocks lie far apart, blockDim.x * 4 elements "
    "each, and the threads of a block side by side: blockIdx.x * blockDim.x * 4 + threadIdx.x.",
)


def _twice(fault: Fault) -> str:
    return _ROUNDS_OVERLAP if fault.within else _BLOCKS_OVERLAP


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x, y = arrays["x"].double(), arrays["y"].double()
    yield "out", "The factor a is left out: that is x[i] + y[i].", x + y
    yield "out", "y is subtracted: it is added.", _A * x - y
    yield "out", "y is multiplied by a, too: that is a * (x[i] + y[i]).", _A * (x + y)


TASK = Task(
    kernel=Kernel("axpy", "IIOfi"),
    launch=lambda size: Launch((blocks(size[0], 512),), (128,), size, (_A,)),
    make=_make,
    exact=_exact,
    cases=(
        Case("one block", (512,), _ONE_BLOCK),
        Case("eight blocks", (4096,), _BLOCKS),
        Case("10,000", (10_000,), _BOUNDS),
    ),
    large=(1 << 24,),
    least=lambda size: 12 * size[0],
    operations=lambda size: 2 * size[0],
    limits=(moved(lambda size: 12 * size[0], _APART),),
    tolerance=1e-6,
    known=_known,
    never=(_CHANGED,),
    means={Kind.WRITTEN_OUTSIDE: _BOUNDS, Kind.READ_OUTSIDE: _BOUNDS, Kind.TWO_WRITERS: _twice},
)


def check(work: Work) -> Iterator[Finding]:
    """One block, several blocks, a last block that is not full."""
    return checked(TASK, work)
