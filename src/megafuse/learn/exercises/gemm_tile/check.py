"""relu(x·weightᵀ + bias) by tiles of 16 × 16, with the epilogue in the store."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from megafuse.learn.exercises import cuda
from megafuse.learn.exercises.cuda import Arrays, Case, Kernel, Launch, Size, Task
from megafuse.learn.exercises.emulator.faults import Fault, Kind
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.work import Work


def _make(size: Size, device: str) -> Arrays:
    rows, outs, ins = size
    return {
        "x": cuda.random(rows, ins, device=device),
        "weight": cuda.random(outs, ins, device=device),
        "bias": cuda.random(outs, device=device),
        "out": cuda.empty(rows, outs, device=device),
    }


def _exact(arrays: Arrays) -> Arrays:
    x, weight, bias = (arrays[name].double() for name in ("x", "weight", "bias"))
    return {"out": (x @ weight.t() + bias).relu()}


_FORMULA = (
    "out[r][o] = max(0, bias[o] + the sum over i of x[r][i] * weight[o][i]): the bias of the "
    "column, added once and not at every tile, and the ReLU after the whole sum, not after a part "
    "of it. In the tiles: x's row is the thread's y, weight's row is the thread's x."
)
_BOUNDS = (
    "20 × 24 with 36 inputs: tiles that are not full. A place of a tile behind the end of a row "
    "must hold 0, so that it adds nothing, and it is not loaded; a result behind the end is not "
    "stored. All threads go on to the barriers, also those without a result."
)
_EARLY = (
    "Two barriers a tile: one after it was filled, before it is used; and one after it was used, "
    "before the next fills it. Without the second, a fast warp overwrites what a slow one still "
    "reads."
)
_AGAIN = (
    "Every thread fetches a row of x and a row of weight for itself. Of a block's 256 threads 16 "
    "need the same row of x and 16 the same row of weight: fetch a 16 × 16 tile of both into "
    "shared memory, use each float 16 times, go on to the next tile. A sixteenth of the loads."
)


def _launch(size: Size) -> Launch:
    return Launch((cuda.blocks(size[1], 16), cuda.blocks(size[0], 16)), (16, 16), size)


def _goal(size: Size) -> int:
    rows, outs, ins = size
    tiles = cuda.blocks(rows, 16) * cuda.blocks(outs, 16) * cuda.blocks(ins, 16)
    return tiles * 2 * 16 * 16 * 4 + 8 * rows * outs


def _tiles(x: Tensor, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(16, -1), weight.split(16, -1), strict=True)


def _known(arrays: Arrays) -> Iterator[tuple[str, str, Tensor]]:
    x, weight, bias = (arrays[name].double() for name in ("x", "weight", "bias"))
    product = x @ weight.t()
    yield "out", "The bias is left out.", product.relu()
    yield "out", "The ReLU is left out.", product + bias
    yield "out", "The bias was added after the ReLU.", product.relu() + bias
    if len(x) <= len(bias):
        told = "The bias was taken by row, bias[r]: each output has its own, bias[o]."
        yield "out", told, (product + bias[: len(x), None]).relu()
    told = "fminf keeps what is below 0: the ReLU is fmaxf(…, 0.0f)."
    yield "out", told, (product + bias).clamp(max=0)
    if x.shape == weight.shape:
        told = "The tile of x was turned: xs[ty][tx] is filled, and xs[ty][k] is read."
        if x.shape[0] == x.shape[1]:
            yield "out", told, (x.t() @ weight.t() + bias).relu()
        told = "x and weight have changed places in the product: xs[ty][k] * ws[tx][k]."
        yield "out", told, (product.t() + bias).relu()
        told = "out was written at o * rows + r, rows and columns changed places: r * outs + o."
        yield "out", told, (product + bias).relu().t()
    if x.shape[1] % 16 == 0:
        last = x[:, -1:] @ weight[:, -1:].t()
        told = "Only the last product is there: `=` in place of `+=`."
        yield "out", told, (last + bias).relu()
    told = "The bias was added with each product: it is added once, after the sum."
    often = 16 * len(list(_tiles(x, weight)))
    yield "out", told, (product + often * bias).relu()
    yield "out", told, (product + (often + 1) * bias).relu()
    whole = x.shape[1] // 16 * 16
    if whole < x.shape[1]:
        told = "The last tile is left out, the one that is not full: first < ins."
        yield "out", told, (x[:, :whole] @ weight[:, :whole].t() + bias).relu()
    sums = torch.zeros_like(product)
    for a, b in _tiles(x, weight):
        sums = (sums + a @ b.t()).relu()
    told = "The ReLU is applied to a part of the sum: it comes after all of it, and after the bias."
    yield "out", told, (sums + bias).relu()
    if weight.shape[0] == weight.shape[1]:
        told = "weight was read by column, weight[i][o]: its rows are the outputs, weight[o][i]."
        yield "out", told, (x @ weight + bias).relu()
    short = [a[:, :15] @ b[:, :15].t() for a, b in _tiles(x, weight)]
    told = "The last of the 16 products of a tile is missing: k goes up to 15."
    yield "out", told, (torch.stack(short).sum(0) + bias).relu()
    if len(x) == len(weight):
        same = (x * weight).sum(-1)[:, None] + bias
        yield "out", "Row y of weight was taken where row x belongs: ws[tx][k].", same.relu()
    yield from _fetched(x, weight, bias)
    tiles = [a @ b.t() for a, b in _tiles(x, weight)]
    if len(tiles) > 1:
        told = "Only the first tile's product is there: the loop goes over all of them, up to ins."
        yield "out", told, (tiles[0] + bias).relu()
        yield (
            "out",
            "Only the last tile's product is there: sum begins anew.",
            (tiles[-1] + bias).relu(),
        )
        many = product + len(tiles) * bias
        yield "out", "The bias was added at every tile.", many.relu()


def _fetched(x: Tensor, weight: Tensor, bias: Tensor) -> Iterator[tuple[str, str, Tensor]]:
    """What comes out if a thread fetches another float than its own."""
    (rows, ins), outs = x.shape, len(weight)
    r, o, i = (torch.arange(n, device=x.device) for n in (rows, outs, ins))
    padded = torch.nn.functional.pad(weight, (0, 0, 0, max(rows, outs) + 16 - outs))
    told = (
        "The rows of weight come from the wrong block: blockIdx.x counts the columns of out, which "
        "are rows of weight, and blockIdx.y counts the rows of out, which are rows of x."
    )
    theirs = padded[(r[:, None] // 16) * 16 + o % 16]  # rows, outs, ins
    yield "out", told, ((x[:, None] * theirs).sum(-1) + bias).relu()
    told = (
        "Every thread of a column fetched the same row of weight, o: thread (tx, ty) multiplies "
        "row tx of the tile, but it fetches row ty, the block's blockIdx.x * 16 + ty."
    )
    theirs = padded[(o[:, None] // 16) * 16 + i % 16, i]  # outs, ins
    yield "out", told, (x @ theirs.t() + bias).relu()
    told = (
        "The column that a thread fetches comes from ty: row from ty, column from tx, so that "
        "neighbours fetch neighbours: first + tx."
    )
    first = torch.arange(0, ins, 16, device=x.device)
    mine, theirs = (
        torch.nn.functional.pad(t, (0, -ins % 16)).gather(1, first + each[:, None] % 16)
        for t, each in ((x, r), (weight, o))
    )
    yield "out", told, (16 * mine @ theirs.t() + bias).relu()
    if outs > 16:
        told = "The bias was taken at the thread's place in its block: bias[o], not bias[tx]."
        yield "out", told, (x @ weight.t() + bias[o % 16]).relu()


_NEVER = (
    cuda.Look.having(
        r"float\s+sum\s*;(?![\s\S]*\bsum\s*=\s*0)",
        "sum begins with whatever is in its register: set it to 0.",
    ),
    cuda.Look(
        lambda source: (
            re.search(r"\+=\s*(8|32)\s*\)", source) is not None
            and re.search(r"float[^;]*\[16\]\s*\[1[67]\]", source) is not None
        ),
        "A tile is 16 columns wide, so that the next one begins 16 further: first += 16. With "
        "less, products are added twice; with more, some are left out.",
    ),
)


def _two_writers(fault: Fault) -> str:
    if fault.array == "out":
        return "Two threads write the same result: out[r][o] lies at r * outs + o."
    return "Two threads fetch to the same place of a tile: thread (tx, ty) fills [ty][tx]."


TASK = Task(
    kernel=Kernel("linear_relu", "IIIOiii"),
    launch=_launch,
    make=_make,
    exact=_exact,
    cases=(
        Case("one tile", (16, 16, 16), _FORMULA),
        Case("20 × 24 × 36", (20, 24, 36), _BOUNDS),
        Case("64 × 64 × 64", (64, 64, 64), _FORMULA),
    ),
    large=(2048, 2048, 1024),
    least=lambda size: 4 * (size[0] * size[2] + size[1] * size[2] + size[0] * size[1]),
    operations=lambda size: 2 * size[0] * size[1] * size[2],
    limits=(
        cuda.moved(_goal, _AGAIN, 1.2),
        cuda.banks(
            "Lanes read down a column of a tile that is 16 wide: pad its rows to 17, as in "
            "exercise 12.",
            2.0,
        ),
    ),
    tolerance=1e-5,
    known=_known,
    never=_NEVER,
    means={
        Kind.RACE: _EARLY,
        Kind.TWO_WRITERS: _two_writers,
        Kind.NEVER_WRITTEN: _BOUNDS,
        Kind.READ_OUTSIDE: _BOUNDS,
        Kind.WRITTEN_OUTSIDE: _BOUNDS,
        Kind.BARRIER_MISSED: _BOUNDS,
    },
)


def check(work: Work) -> Iterator[Finding]:
    """A tile, tiles that are not full, many; what is asked for."""
    return cuda.check(TASK, work)
