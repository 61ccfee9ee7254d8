"""The reduction ladder: LayerNorm over the last of two dimensions, float32."""

from __future__ import annotations

from torch import Tensor

from megafuse.learn.ladder.launch import Access, Grid, empty, launch, processors, read, write
from megafuse.learn.ladder.rung import Ladder, Rung, shipped

LONGEST_KEPT = 4096  # floats of a row that a warp keeps in registers: 128 a thread, of 255
_THREADS = 256  # of a block
_WARP = 32


def naive(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _norm("layer_norm/1_naive", Grid.cover(len(x), 64), 3, 1, x, weight, bias, eps)


def coalesced(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    grid = Grid((len(x), 1), (_THREADS, 1))
    return _norm("layer_norm/2_coalesced", grid, 3, _THREADS, x, weight, bias, eps)


def warp(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return _norm("layer_norm/3_warp", _warp_per_row(x), 3, _WARP, x, weight, bias, eps)


def row_kept(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    _check_length(x)
    return _norm("layer_norm/4_row_kept", _warp_per_row(x), 1, _WARP, x, weight, bias, eps)


def wide(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    _check_length(x)
    return _norm("layer_norm/5_wide", _warp_per_row(x), 1, _WARP, x, weight, bias, eps)


def _norm(
    file: str,
    grid: Grid,
    reads: int,
    threads: int,  # of a row
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
) -> Tensor:
    out = empty(*x.shape, like=x)
    rows, cols = x.shape
    above = _compiled_in(x) if reads == 1 else ""
    launch(
        *(file, "layer_norm", grid),
        *(read(x, reads, between=_under_way(x, threads)), read(weight), read(bias)),
        *(_row_statistics(x) if reads > 1 else ()),
        *(write(out), float(eps), rows, *(() if above else (cols,))),
        above=above,
    )
    return out


def _compiled_in(x: Tensor) -> str:
    """The line above a source that keeps a row in registers. A CPU's row stays in a cache, which
    takes any length."""
    return f"#define COLS {x.shape[-1]}\n" if x.device.type == "cuda" else ""


def _under_way(x: Tensor, threads: int) -> int:
    """Bytes of all rows that are worked on at a time: what goes by between two passes over one.

    A CPU's sweep goes over all of x. A GPU's processor has up to 2048 threads.
    """
    if x.device.type != "cuda":
        return x.nbytes
    rows = processors(x.device) * (2048 // threads)
    return min(x.nbytes, rows * x.shape[-1] * x.element_size())


def _row_statistics(x: Tensor) -> tuple[Access, ...]:
    """Mean and scale of each row, which wait in memory where the CPU sweeps all rows three times.

    A few bytes a row, used from cache: not counted. A GPU's threads keep them in registers.
    """
    if x.device.type == "cuda":
        return ()
    return tuple(Access(empty(len(x), like=x), times=0) for _ in range(2))


def _warp_per_row(x: Tensor) -> Grid:
    return Grid.cover(_WARP * len(x), _THREADS)


def _check_length(x: Tensor) -> None:
    if x.device.type == "cuda" and x.shape[-1] > LONGEST_KEPT:
        raise ValueError(
            f"this rung keeps a row in registers, at most {LONGEST_KEPT} floats, and these rows "
            f"have {x.shape[-1]}; megafuse.layer_norm takes rows of any length"
        )


LADDER = Ladder(
    "layer_norm",
    (
        Rung(
            "naive",
            "one thread a row, three passes",
            "three sweeps, down the columns",
            naive,
            "layer_norm/1_naive",
            waits="a load of its warp touches 32 rows, and of the 32 bytes that come from each it "
            "uses 4",
            waits_on_cpu="of every 64 bytes that arrive it uses 4 before the cache needs the room",
        ),
        Rung(
            "coalesced",
            "one block a row, three passes",
            "three sweeps, straight through memory",
            coalesced,
            "layer_norm/2_coalesced",
            waits="its warps meet at 20 barriers a row",
            waits_on_cpu="its sums are chains: each addition waits for the one before",
        ),
        Rung(
            "32 lanes",
            "one warp a row: sums by shuffles, no barrier, three passes",
            "32 sums side by side, so that SIMD can add them",
            warp,
            "layer_norm/3_warp",
            waits="it has four loads a thread under way at a time, and three passes",
        ),
        Rung(
            "row kept",
            "its length compiled in, it stays in registers: one read",
            "row by row: the second and third pass find it in cache",
            row_kept,
            "layer_norm/4_row_kept",
        ),
        Rung(
            "16-byte loads",
            "four floats with each load and store",
            "SIMD has loaded 16 bytes and more at once since the 32 lanes",
            wide,
            "layer_norm/5_wide",
            on_cpu=False,
        ),
        shipped("layer_norm", "the op itself: any shape, stride, dtype and length of row"),
    ),
)
