"""The mistake and its repair: relu(x·weightᵀ + bias) with a matrix product of one's own."""

from __future__ import annotations

from torch import Tensor

from megafuse.learn.ladder.launch import Grid, empty, launch, read, write
from megafuse.learn.ladder.rung import Ladder, Rung, shipped

_BLOCK = 16  # naive on CUDA: 16 × 16 threads
_TILE = {"cuda": 32, "cpu": 4}  # outputs that share what one of them fetched


def naive(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _linear("linear_relu/1_naive", x, weight, bias, _BLOCK, 1)


def tiled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    tile = _TILE[x.device.type]
    return _linear("linear_relu/2_tiled", x, weight, bias, tile, tile)


def _linear(file: str, x: Tensor, weight: Tensor, bias: Tensor, side: int, shared: int) -> Tensor:
    """Each float of x is fetched once for every `shared` outputs of its row; likewise weight."""
    rows, ins = x.shape
    outs = len(weight)
    out = empty(rows, outs, like=x)
    grid = Grid((-(-outs // side), -(-rows // side)), (side, side))
    fetches_of_x, fetches_of_weight = -(-outs // shared), -(-rows // shared)
    launch(
        *(file, "linear_relu", grid),
        *(read(x, fetches_of_x), read(weight, fetches_of_weight), read(bias), write(out)),
        *(rows, outs, ins),
    )
    return out


LADDER = Ladder(
    "linear_relu",
    (
        Rung(
            "naive GEMM",
            "one launch, one thread an output",
            "three loops, one output after the other",
            naive,
            "linear_relu/1_naive",
        ),
        Rung(
            "tiled GEMM",
            "tiles in shared memory: each float fetched is used 32 times",
            "4 × 4 outputs at a time, SIMD sums",
            tiled,
            "linear_relu/2_tiled",
        ),
        shipped("linear_relu", "the library's GEMM, ReLU in its epilogue"),
    ),
)
