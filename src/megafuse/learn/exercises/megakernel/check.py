"""W2·relu(W1·x + b1) + b2 for one token, in one launch of two phases."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Look, Size, Task
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work

_THREADS = 64


def _make(size: Size, device: str) -> Arrays:
    ins, hidden, outs, _ = size
    return {
        "x": cuda.random(ins, device=device),
        "w1": cuda.random(hidden, ins, device=device) / ins**0.5,
        "b1": cuda.random(hidden, device=device),
        "w2": cuda.random(outs, hidden, device=device) / hidden**0.5,
        "b2": cuda.random(outs, device=device),
        "h": cuda.empty(hidden, device=device),
        "y": cuda.empty(outs, device=device),
        "arrived": torch.zeros(1, dtype=torch.int32, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    x, w1, b1, w2, b2 = (arrays[name].double() for name in ("x", "w1", "b1", "w2", "b2"))
    return {"y": w2 @ (w1 @ x + b1).relu() + b2}


def _weights(size: Size) -> int:
    ins, hidden, outs, _ = size
    return 4 * (hidden * ins + outs * hidden)


_FORMULA = (
    "h[j] = relu(b1[j] + row j of w1 times x), y[o] = b2[o] + row o of w2 times h, every j and "
    "every o by one warp of the grid: warp number blockIdx.x * 2 + threadIdx.x / 32, and then as "
    "many further as the grid has warps. nan: no warp came there."
)
_BETWEEN = (
    "The second phase reads all of h, and other blocks wrote most of it: everyone must meet at "
    "grid_barrier(arrived) between the phases."
)
_EVERYONE = (
    "Every block must come to the barrier, once, also one that has no row to compute: it stands "
    "between the two loops, not inside one."
)
_AGAIN = (
    "Right, but every block computes all of h for itself, and so reads all of w1: the weights are "
    "most of what moves when one token is generated. Share the rows out over all warps of the "
    "grid, write h to memory, meet, and then read it."
)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x, w1, b1, w2, b2 = (arrays[name].double() for name in ("x", "w1", "b1", "w2", "b2"))
    h = (w1 @ x + b1).relu()
    yield "y", "The ReLU of the first layer is left out.", w2 @ (w1 @ x + b1) + b2
    yield "y", "b1, the bias of the first layer, is left out.", w2 @ (w1 @ x).relu() + b2
    yield "y", "b2, the bias of the second layer, is left out.", w2 @ h
    if len(x) >= w2.shape[1]:
        told = "The second layer was given x: it takes h."
        yield "y", told, w2 @ x[: w2.shape[1]] + b2
    told = "b1 is added after the ReLU: it is relu(w1 * x + b1)."
    yield "y", told, w2 @ ((w1 @ x).relu() + b1) + b2
    told = "Every row got the bias of row 0, and {0}[lane] is that, too: it is {0}[{1}]."
    yield "y", told.format("b1", "j"), w2 @ (w1 @ x + b1[0]).relu() + b2
    yield "y", told.format("b2", "o"), w2 @ h + b2[0]
    hidden, ins = w1.shape
    if hidden <= ins:
        starts = torch.arange(hidden, device=x.device)[:, None] * hidden
        rows = w1.flatten()[starts + torch.arange(ins, device=x.device)]
        told = "Row j of w1 was taken from j * hidden on: it is ins floats long, w1 + j * ins."
        yield "y", told, w2 @ (rows @ x + b1).relu() + b2
        told = "The first product has hidden terms: a row of w1 is ins floats long."
        yield "y", told, w2 @ (w1[:, :hidden] @ x[:hidden] + b1).relu() + b2
    outs = len(w2)
    if outs <= hidden:
        starts = torch.arange(outs, device=x.device)[:, None] * outs
        rows = w2.flatten()[starts + torch.arange(hidden, device=x.device)]
        told = "Row o of w2 was taken from o * outs on: it is hidden floats long, w2 + o * hidden."
        yield "y", told, rows @ h + b2
    yield "y", "There is a ReLU after the second layer, too: it has none.", (w2 @ h + b2).relu()


def _depth(source: str) -> int:
    """How many braces are open where the barrier is called; 1 is the kernel's own."""
    kernel = source[source.find("__global__") :]
    before = kernel[: max(kernel.find("grid_barrier("), 0)]
    return before.count("{") - before.count("}")


def _called(source: str) -> int:
    """Where the kernel calls the barrier."""
    return source.find("grid_barrier(", source.find("__global__"))


_LOOKS = (
    Look(
        lambda source: "grid_barrier(" not in source[source.find("__global__") :],
        "The kernel never calls grid_barrier(arrived).",
    ),
    Look(
        lambda source: _called(source) > max(source.rfind("dot("), 0),
        "The barrier comes after both phases: it stands between them.",
    ),
    Look.having(
        r"if\s*\([^()]*\)\s*\{?\s*grid_barrier\(",
        "The barrier stands in an `if`: blocks that do not take it never come, and the others go "
        "by a count that is wrong, or wait for ever.",
    ),
    Look(
        lambda source: _depth(source) > 1,
        "The barrier stands inside a loop or an `if`, so that warps come to it as often as they "
        "have rows.",
    ),
    Look.without(
        r"blockIdx\.x\s*\*|\*\s*blockIdx\.x",
        "blockIdx.x is not multiplied by the warps of a block, so two warps have the same number.",
    ),
)


def _never_written(fault: Fault) -> str:
    if fault.array == "h":
        return "Phase 2 reads all of h: phase 1 writes h[j] for every j below hidden."
    return (
        f"{fault.array} is in shared memory, which is each block's own: what other blocks computed "
        "is not in it. Write h, in memory, which all of them have."
    )


TASK = Task(
    kernel=Kernel("mlp", "IIIIIOOCiii"),
    launch=lambda size: Launch((size[3],), (_THREADS,), size[:3], at_once=size[3]),
    make=_make,
    exact=_exact,
    cases=(
        Case("one block", (32, 16, 8, 1), _FORMULA),
        Case("three blocks", (40, 25, 11, 3), _FORMULA + " " + _BETWEEN),
        Case("more warps than rows", (33, 5, 3, 4), _FORMULA + " " + _BETWEEN),
        Case("four blocks", (64, 48, 32, 4), _FORMULA + " " + _BETWEEN),
    ),
    large=(4096, 8192, 4096, 64),
    least=_weights,
    operations=lambda size: 2 * size[1] * (size[0] + size[2]),
    limits=(
        # x and h are read again for each row, from a cache.
        cuda.moved(lambda size: 2 * _weights(size) + 64 * (size[1] + size[2]), _AGAIN),
    ),
    tolerance=1e-5,
    known=_known,
    looks=_LOOKS,
    means={
        Kind.RACE: _BETWEEN,
        Kind.TWO_WRITERS: (
            "Two warps have the same row, or all 32 lanes write it: warp number `warp` takes rows "
            "warp, warp + warps, …, where warps counts those of the whole grid, and lane 0 writes."
        ),
        Kind.NEVER_WRITTEN: _never_written,
        Kind.READ_OUTSIDE: "Row j of w1 is `ins` floats long, row o of w2 is `hidden` floats long.",
        Kind.SHUFFLE_MISSED: "All 32 lanes of the warp call dot(), and lane 0 writes.",
        Kind.DEADLOCK: _EVERYONE,
        Kind.BARRIER_MISSED: _EVERYONE,
        Kind.BARRIERS_MIXED: _EVERYONE,
    },
)


def check(work: Work) -> Iterator[Finding]:
    """Sizes that fit the warps and that do not; how often the weights are read."""
    return cuda.check(TASK, work)
