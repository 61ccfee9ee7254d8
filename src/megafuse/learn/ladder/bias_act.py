"""The pointwise ladder of a CPU whose arithmetic is dear: relu(x + bias), two operations a float.

gelu·scale has twelve, and on such a machine they take longer than the bytes: no pass that is saved
would show (a Neoverse-N1: 9.6 ms for two passes, 8.9 for one, where a copy takes 1.1).
"""

from __future__ import annotations

from torch import Tensor

from megafuse.learn.ladder.launch import Grid, empty, launch, read, write
from megafuse.learn.ladder.rung import Ladder, Rung, shipped

_EVERY_THREAD = Grid.cover(2)  # a CPU's launch has as many as torch uses


def naive(x: Tensor, bias: Tensor, act: str) -> Tensor:
    return _two_passes("bias_act/1_naive", x, bias, act)


def coalesced(x: Tensor, bias: Tensor, act: str) -> Tensor:
    return _two_passes("bias_act/2_coalesced", x, bias, act)


def wide(x: Tensor, bias: Tensor, act: str) -> Tensor:
    return _two_passes("bias_act/3_wide", x, bias, act)


def fused(x: Tensor, bias: Tensor, act: str) -> Tensor:
    _check(act)
    out = empty(*x.shape, like=x)
    sizes = x.shape
    given = (read(x), read(bias), write(out), *sizes)
    launch("bias_act/4_fused", "bias_act", _EVERY_THREAD, *given)
    return out


def _two_passes(file: str, x: Tensor, bias: Tensor, act: str) -> Tensor:
    """The sum goes out to memory and comes back."""
    _check(act)
    y, out = empty(*x.shape, like=x), empty(*x.shape, like=x)
    launch(file, "add", _EVERY_THREAD, read(x), read(bias), write(y), *x.shape)
    again = read(y, since=x.nbytes + y.nbytes)
    launch(file, "relu", _EVERY_THREAD, again, write(out), *x.shape)
    return out


def _check(act: str) -> None:
    if act != "relu":
        raise ValueError(f"the ladder's kernels know relu, not {act!r}; megafuse.bias_act has more")


_NAIVE = "of every 64 bytes that arrive it uses 4 before the cache needs the room for others"

LADDER = Ladder(
    "bias_act",
    (
        Rung(
            "naive",
            "a GPU has arithmetic enough for gelu",
            "down the columns: each step lands on another cache line",
            naive,
            "bias_act/1_naive",
            on_gpu=False,
            waits_on_cpu=_NAIVE,
        ),
        Rung(
            "coalesced",
            "a GPU has arithmetic enough for gelu",
            "straight through memory, one float at a time",
            coalesced,
            "bias_act/2_coalesced",
            on_gpu=False,
            waits_on_cpu="it does one float with each instruction, where SIMD would do 4 to 16",
        ),
        Rung(
            "16-byte loads",
            "a GPU has arithmetic enough for gelu",
            "SIMD: several floats with each instruction",
            wide,
            "bias_act/3_wide",
            on_gpu=False,
        ),
        Rung(
            "fused",
            "a GPU has arithmetic enough for gelu",
            "both operations in one pass",
            fused,
            "bias_act/4_fused",
            on_gpu=False,
        ),
        shipped("bias_act", "the op itself: any shape, stride and dtype, with gradients"),
    ),
)
