"""The lines of the ladders' CUDA sources that the reader writes, one for each rung."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.learn.exercises import patterns
from megafuse.learn.exercises.emulator.run import Kernel, Launch

Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class Blank:
    """A line of a source that is left out, and what it takes to judge another in its place."""

    file: str  # in learn/ladder/kernels
    line: str
    ask: str
    kernel: Kernel
    launch: Launch
    arrays: Callable[[], Arrays]
    exact: Callable[[Arrays], Tensor]
    sectors: float  # the most a request may touch on average; more is explained as slow
    says: str  # when the result is wrong
    slow: str = "Right, but its lanes touch too many sectors."
    above: str = ""  # a line that the source needs before its own
    mistakes: Mapping[str, str] = field(default_factory=dict)  # a pattern, and what it means
    drawn: str = "x"  # the array whose load has a picture


# ---- gelu, then scale

_N = 1000


def _floats() -> Arrays:
    return {"x": torch.randn(_N), "y": patterns.blank(_N)}


def _gelu(arrays: Arrays) -> Tensor:
    return F.gelu(arrays["x"].double(), approximate="tanh")


def _pointwise(file: str, line: str, ask: str, says: str, sectors: float, **more: object) -> Blank:
    blocks = 1 if file.endswith("1_naive") else 2
    return Blank(
        *(file, line, ask, Kernel("gelu", "IOi"), Launch((blocks,), (64,), (_N,))),
        *(_floats, _gelu, sectors, says),
        **more,  # type: ignore[arg-type]
    )


_ROWS, _COLS = 9, 100


def _rows() -> Arrays:
    return {
        "x": torch.randn(_ROWS, _COLS) + 2,
        "weight": torch.randn(_COLS),
        "bias": torch.randn(_COLS),
        "out": patterns.blank(_ROWS, _COLS),
    }


def _norm(arrays: Arrays) -> Tensor:
    x, weight, bias = (arrays[name].double() for name in ("x", "weight", "bias"))
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


def _reduction(
    *text: str, blocks: int, threads: int, kept: bool = False, sectors: float = 5.0, **more: object
) -> Blank:
    file, line, ask, says = text
    numbers = (_ROWS,) if kept else (_ROWS, _COLS)
    kernel = Kernel("layer_norm", "IIIOf" + "i" * len(numbers))
    return Blank(
        *(file, line, ask, kernel, Launch((blocks,), (threads,), numbers, (1e-5,))),
        *(_rows, _norm, sectors, says),
        above=f"#define COLS {_COLS}" if kept else "",
        **more,  # type: ignore[arg-type]
    )


def _product() -> Arrays:
    return {
        "x": torch.randn(40, 36),
        "weight": torch.randn(33, 36),
        "bias": torch.randn(33),
        "out": patterns.blank(40, 33),
    }


def _linear(arrays: Arrays) -> Tensor:
    x, weight, bias = (arrays[name].double() for name in ("x", "weight", "bias"))
    return (x @ weight.t() + bias).relu()


POINTWISE = (
    _pointwise(
        "gelu_scale/1_naive",
        "const long long first = thread * kStretch;",
        "Each thread walks a stretch of kStretch floats. Where does thread `thread` begin?",
        "Thread 0 has floats 0 to 63, thread 1 those from 64 on: the stretches lie one after the "
        "other, and each is kStretch long.",
        40.0,
        mistakes={
            r"=\s*thread\s*;": "With `thread` alone the stretches overlap: thread 1 would begin at "
            "float 1.",
            r"blockDim|blockIdx": "`thread` is the number in the whole grid already.",
        },
    ),
    _pointwise(
        "gelu_scale/2_coalesced",
        "for (long long i = thread; i < n; i += threads)",
        "Neighbouring threads take neighbouring floats, then all jump ahead by the whole grid: "
        "write the loop over i. There are `threads` threads.",
        "Thread t takes floats t, t + threads, t + 2 threads, and so on, below n.",
        5.0,
        mistakes={
            r"\+\+i|i\s*\+=\s*1\b": "A step of 1 lets every thread walk over its neighbours' "
            "floats.",
            r"<=\s*n": "i <= n takes one float too many: the last place is n - 1.",
        },
        slow="Right, but neighbouring threads are far apart: thread t and t + 1 should take floats "
        "side by side.",
    ),
    _pointwise(
        "gelu_scale/3_wide",
        "float4 v = reinterpret_cast<const float4*>(x)[i];",
        "Load group i, four floats, with one instruction, into `float4 v`:",
        "As float4*, element i is floats 4 i to 4 i + 3.",
        17.0,
        mistakes={
            r"x\s*\+\s*i\b": "x + i is float i, not group i: 16 bytes must begin at a multiple of "
            "16.",
            r"^\s*float v": "A float is 4 bytes. v has v.x, v.y, v.z and v.w below: a float4.",
            r"\[\s*4\s*\*\s*i": "As float4* it counts in groups already: [i], not [4 * i].",
        },
    ),
    Blank(
        "gelu_scale/4_fused",
        "v.x = functor(v.x);",
        "functor computes gelu and the scale, from register to register. The first of the four, "
        "v.x, is yours:",
        Kernel("gelu_scale", "IOfi"),
        Launch((2,), (64,), (_N,), (1.7,)),
        _floats,
        lambda arrays: _gelu(arrays) * float(torch.tensor(1.7)),
        17.0,
        "v.x is one of four floats, and becomes functor of itself, like v.y below.",
        mistakes={r"factor": "The functor has the factor already: it got it in its constructor."},
    ),
)

REDUCTION = (
    _reduction(
        "layer_norm/1_naive",
        "for (long long c = 0; c < cols; ++c) sum += in[c];",
        "One thread has the row `in` of `cols` floats. Add it up into `sum`:",
        "sum is that of all floats of the row, from 0 to cols - 1.",
        blocks=1,
        threads=64,
        sectors=40.0,
        mistakes={r"<=\s*cols": "c <= cols takes the first float of the next row too."},
    ),
    _reduction(
        "layer_norm/2_coalesced",
        "for (long long c = threadIdx.x; c < cols; c += kThreads) sum += in[c];",
        "Now a block of kThreads threads has the row. Each adds up its share, side by side with "
        "its neighbours:",
        "Thread t adds floats t, t + kThreads, …; each float is added by one thread.",
        blocks=_ROWS,
        threads=256,
        mistakes={
            r"c\s*=\s*0": "Beginning at 0, every thread adds the whole row, and the block's sum is "
            "256 times too large.",
            r"\+\+c": "A step of 1 adds what other threads add too.",
        },
    ),
    _reduction(
        "layer_norm/3_warp",
        "mine += __shfl_xor_sync(0xffffffffu, mine, away);",
        "A warp without a barrier: in each round a lane adds what lane ^ away has in `mine`. Write "
        "it with __shfl_xor_sync and the mask 0xffffffffu:",
        "After rounds of 16, 8, 4, 2 and 1 every lane must have the sum of all 32.",
        blocks=3,
        threads=128,
        mistakes={
            r"^\s*mine\s*=\s*__shfl": "= replaces what the lane has; it must add to it: +=.",
            r"__shfl_down": "With down only lane 0 ends with the sum, and all lanes need it here.",
        },
    ),
    _reduction(
        "layer_norm/4_row_kept",
        "kept[k] = c < COLS ? x[row * COLS + c] : 0;",
        "The row is read once, into registers: kept[k] is column c of row `row`, or 0 where there "
        "is none (COLS columns):",
        "kept[k] holds x[row][c], which lies at row * COLS + c.",
        blocks=3,
        threads=128,
        kept=True,
        mistakes={
            r"^\s*kept\[k\]\s*=\s*x\[[^?]*$": "The last columns do not exist: without the question "
            "the warp reads the next row, and at the end what lies behind x.",
        },
    ),
    _reduction(
        "layer_norm/5_wide",
        "kept[k] = *reinterpret_cast<const Floats*>(x + row * COLS + c);",
        "The same with 16 bytes a load: Floats is four floats. Load those at column c of the row:",
        "The address is x + row * COLS + c, in floats, seen as a pointer to Floats.",
        blocks=3,
        threads=128,
        kept=True,
        sectors=17.0,
        mistakes={r"\[c\]": "As Floats* an index counts in fours: [c] would be column 4 c."},
    ),
)

# Shown whole, and drawn; nothing of it is left out.
NAIVE_PRODUCT = Blank(
    "linear_relu/1_naive",
    "sum = mf::fma(x[row * ins + i], weight[o * ins + i], sum);",
    "",
    Kernel("linear_relu", "IIIOiii"),
    Launch((3, 3), (16, 16), (40, 33, 36)),
    _product,
    _linear,
    40.0,
    "",
    drawn="weight",
)
PRODUCT = Blank(
    "linear_relu/2_tiled",
    "sum = mf::fma(xs[down][k], ws[across][k], sum);",
    "The tiles xs and ws are filled. Add the k-th product to `sum`, with mf::fma(a, b, sum): row "
    "`down` of xs, row `across` of ws:",
    Kernel("linear_relu", "IIIOiii"),
    Launch((2, 2), (32, 32), (40, 33, 36)),
    _product,
    _linear,
    5.0,
    "out[row][o] is row `row` of x times row `o` of weight: xs[down][k] and ws[across][k].",
    mistakes={
        r"\[k\]\[": "k is the column in both tiles: they hold rows of x and rows of weight.",
        r"=\s*xs[^+]*$": "It must add to the sum of the tiles before.",
    },
)
