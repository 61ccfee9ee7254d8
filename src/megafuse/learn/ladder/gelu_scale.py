"""The pointwise ladder: gelu(x)·scale, x contiguous float32 of any shape."""

from __future__ import annotations

from torch import Tensor

from megafuse.learn.ladder.launch import Grid, empty, launch, read, write
from megafuse.learn.ladder.rung import Ladder, Rung, shipped

_STRETCH = 64  # floats a thread, as in 1_naive.cu


def naive(x: Tensor, scale: float) -> Tensor:
    stretches = -(-x.numel() // _STRETCH)
    return _two_passes("gelu_scale/1_naive", Grid.cover(stretches), x, scale)


def coalesced(x: Tensor, scale: float) -> Tensor:
    return _two_passes("gelu_scale/2_coalesced", Grid.fill(x), x, scale)


def wide(x: Tensor, scale: float) -> Tensor:
    return _two_passes("gelu_scale/3_wide", Grid.fill(x), x, scale)


def fused(x: Tensor, scale: float) -> Tensor:
    out = empty(*x.shape, like=x)
    factor, n = float(scale), x.numel()
    launch("gelu_scale/4_fused", "gelu_scale", Grid.fill(x), read(x), write(out), factor, n)
    return out


def _two_passes(file: str, grid: Grid, x: Tensor, scale: float) -> Tensor:
    """gelu's result goes out to memory and comes back."""
    activated, out = empty(*x.shape, like=x), empty(*x.shape, like=x)
    launch(file, "gelu", grid, read(x), write(activated), x.numel())
    again = read(activated, since=x.nbytes + activated.nbytes)
    launch(file, "scale", grid, again, write(out), float(scale), x.numel())
    return out


LADDER = Ladder(
    "gelu_scale",
    (
        Rung(
            "naive",
            "every thread walks a stretch of its own",
            "down the columns: each step lands on another cache line",
            naive,
            "gelu_scale/1_naive",
            waits="a load of its warp touches 32 places, and of the 32 bytes that come from each "
            "it uses 4",
            waits_on_cpu="of every 64 bytes that arrive it uses 4 before the cache needs the room",
        ),
        Rung(
            "coalesced",
            "neighbouring threads take neighbouring floats",
            "straight through memory, one float at a time",
            coalesced,
            "gelu_scale/2_coalesced",
            waits="each thread has 4 bytes under way at a time, too few to keep memory busy",
            waits_on_cpu="it does one float with each instruction, where SIMD would do 4 to 16",
        ),
        Rung(
            "16-byte loads",
            "four floats with each load and store",
            "SIMD: several floats with each instruction",
            wide,
            "gelu_scale/3_wide",
        ),
        Rung(
            "fused",
            "both operations in one pass",
            "both operations in one pass",
            fused,
            "gelu_scale/4_fused",
        ),
        shipped("gelu_scale", "the op itself: any shape, stride and dtype, with gradients"),
    ),
)
