"""Functions whose generated CUDA kernels run in the emulator, and the arguments of each.

A group is a list of cases that one process runs. Sizes are chosen by what the drivers do with them:
widths of vectors, tails, rows that a warp, a block or no block holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

GROUPS: dict[str, list[Case]] = {}


@dataclass(frozen=True)
class Case:
    """`draw` makes the arguments, on the CPU; floats get gradients where `gradients`.

    `apart`: elements from one row to the next on the GPU, so that offsets need 64 bits.
    """

    name: str
    function: Callable[..., Any]
    draw: Callable[[], tuple[Any, ...]]
    gradients: bool = False
    apart: int = 0
    hosted: bool = False  # the last argument stays on the host
    fused: bool = True


def add(
    group: str,
    name: str,
    function: Callable[..., Any],
    *draws: Callable[[], tuple[Any, ...]],
    gradients: bool = False,
    apart: int = 0,
    hosted: bool = False,
    fused: bool = True,
) -> None:
    """The function as one case for each way to draw its arguments."""
    made = GROUPS.setdefault(group, [])
    for i, draw in enumerate(draws):
        label = name if len(draws) == 1 else f"{name}-{i}"
        made.append(Case(label, function, draw, gradients, apart, hosted, fused))


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def integers(*shape: int, dtype: torch.dtype = torch.int64, most: int = 9) -> Tensor:
    low = 0 if dtype == torch.uint8 else -most
    return torch.randint(low, most + 1, shape).to(dtype)


def sized(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], Any]:
    """Draws a tensor of each shape."""
    return lambda: tuple(normal(*shape, dtype=dtype) for shape in shapes)


def off(t: Tensor, by: int = 1) -> Tensor:
    """The same elements, `by` of them after an address that is a multiple of 16."""
    return torch.cat([t.flatten()[:1].expand(by), t.flatten()])[by:].view_as(t)


HALF, BF16, DOUBLE = torch.float16, torch.bfloat16, torch.float64

# ---- pointwise: vectors, tails, broadcasts, layouts

SWISH = lambda x, y: F.silu(x) * y + 0.5  # noqa: E731
add("pointwise", "whole", SWISH, *[sized((n,), (n,)) for n in (1, 3, 128, 1000, 4099)])
add("pointwise", "rows_odd", SWISH, sized((33, 65), (33, 65)), sized((7, 63), (63,)))
add("pointwise", "bias", SWISH, sized((9, 64), (64,)), sized((9, 61), (61,)))
add("pointwise", "column", SWISH, sized((9, 64), (9, 1)), sized((17, 3, 5), (17, 1, 5)))
add("pointwise", "both", SWISH, sized((64, 1), (1, 48)), sized((5, 1), (1, 7)))
add("pointwise", "one", SWISH, sized((), (40,)), sized((), ()))
add(
    "pointwise", "half", SWISH, sized((13, 72), (72,), dtype=HALF), sized((4099,), (1,), dtype=HALF)
)
add(
    "pointwise",
    "bf16",
    SWISH,
    sized((13, 72), (72,), dtype=BF16),
    sized((5, 33), (33,), dtype=BF16),
)
add("pointwise", "double", SWISH, sized((13, 6), (6,), dtype=DOUBLE))
add(
    "pointwise",
    "mixed",
    SWISH,
    lambda: (normal(9, 40, dtype=BF16), normal(9, 40)),
    lambda: (normal(9, 40), normal(40, dtype=DOUBLE)),
)
add(
    "pointwise",
    "unaligned",
    SWISH,
    lambda: (off(normal(9, 64)), normal(9, 64)),
    lambda: (off(normal(9, 64), 2), off(normal(64), 3)),
    lambda: (off(normal(500, dtype=BF16), 5), normal(500, dtype=BF16)),
)
add(
    "pointwise",
    "layouts",
    SWISH,
    lambda: (normal(12, 20).t(), normal(20, 12)),
    lambda: (normal(12, 41)[:, ::2], normal(12, 21)),
    lambda: (normal(2, 8, 4, 4).to(memory_format=torch.channels_last), normal(8, 1, 1)),
    lambda: (normal(1, 20).expand(6, 20), normal(6, 1).expand(6, 20)),
    lambda: (normal(3, 4, 5, 6).permute(3, 1, 0, 2), normal(6, 4, 3, 5)),
)
add(
    "pointwise", "two_results", lambda x, y: (x.exp() * y, (x > y), x.long()), sized((5, 36), (36,))
)

# ---- where, cat, pad, slices, indices

add(
    "places",
    "cat",
    lambda x, y: torch.cat([x * 2, y + 1], -1),
    sized((5, 12), (5, 20)),
    sized((5, 3), (5, 4)),
)
add(
    "places",
    "rope",
    lambda x, c, s: (
        x * c + torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1) * s
    ),
    sized((2, 3, 4, 16), (4, 16), (4, 16)),
    sized((2, 3, 4, 10), (4, 10), (4, 10), dtype=BF16),
)
add("places", "pad", lambda x: F.pad(x * 2, (1, 2, 0, 3), value=0.5), sized((6, 13)), sized((4, 8)))
add("places", "slices", lambda x: x[1:, 2:-1] * x[:-1, 1:-2], sized((8, 35)))
add("places", "flip", lambda x: x.flip(-1).roll(3, 0) + x, sized((8, 20)))
add(
    "places",
    "where",
    lambda x: torch.where(x > 0, x, x.exp() - 1).masked_fill(x > 1, 7.0),
    sized((5, 77)),
)
add("places", "tril", lambda x: x.tril(1) - x.triu(2), sized((3, 17, 17)))
add("places", "arange", lambda x: x * torch.arange(x.shape[-1], device=x.device), sized((5, 31)))
add(
    "places",
    "embedding",
    lambda table, i: F.embedding(i, table) * 2,
    lambda: (normal(10, 24), torch.randint(0, 10, (3, 7))),
)
add(
    "places",
    "gather",
    lambda x, i: x.gather(-1, i) + 1,
    lambda: (normal(6, 24), torch.randint(0, 24, (6, 5))),
)
add("places", "stack", lambda x, y: torch.stack([x, y * 2], -1).flatten(-2), sized((4, 9), (4, 9)))

# ---- pairs: operands that take turns in memory, moved as one vector


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def written_in_turn(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[..., 1::2] = x[..., ::2] * y[..., 1::2]
    out[..., ::2] = x[..., 1::2] - y[..., ::2]
    return out


for each in (torch.float32, BF16, HALF, DOUBLE):
    add(
        "pairs",
        f"turned_{str(each).removeprefix('torch.')}",
        turned,
        *[
            sized((2, 3, *n), (n[0], n[1] // 2), (n[0], n[1] // 2), dtype=each)
            for n in ((4, 16), (5, 18), (1, 2), (40, 64))
        ],
        gradients=True,
    )
add(
    "pairs",
    "lying_otherwise",
    turned,
    lambda: (off(normal(9, 64)), normal(32), normal(9, 32)),
    lambda: (off(normal(9, 64, dtype=BF16), 2), normal(32, dtype=BF16), normal(9, 32)),
    lambda: (normal(9, 70)[:, 2:66], normal(32), off(normal(9, 32))),
    lambda: (normal(9, 65)[:, :64], normal(32), normal(9, 32)),
    lambda: (normal(9, 192)[:, ::3], normal(32), normal(9, 32)),
    lambda: (normal(64, 9).t(), normal(32), normal(9, 32)),
    gradients=True,
)
add(
    "pairs",
    "stack",
    lambda x, y: torch.stack((x * 2, y - 1), -1),
    *[sized((n,), (n,)) for n in (1, 3, 1000, 4099)],
    lambda: (integers(7, 33, dtype=torch.int8), integers(7, 33, dtype=torch.int8)),
    lambda: (normal(5, 33), normal(5, 33, dtype=DOUBLE)),
)
add("pairs", "bools", lambda x, y: torch.stack((x > y, x < 0), -1), sized((9, 33), (33,)))
add(
    "pairs",
    "written",
    written_in_turn,
    *[sized(shape, shape[-1:]) for shape in ((5, 6), (9, 64), (3, 5, 26))],
    sized((9, 64), (9, 64), dtype=BF16),
)
add(
    "pairs",
    "read",
    lambda x: F.silu(x[..., ::2]) * x[..., 1::2],
    sized((9, 64)),
    sized((9, 62), dtype=BF16),
    sized((2000,)),
    sized((9, 130), dtype=BF16),
    gradients=True,
)
add(
    "pairs",
    "twice",
    lambda x, y: x.repeat_interleave(2, -1) * y,
    sized((9, 20), (9, 40)),
    sized((9, 21), (42,), dtype=BF16),
)
add("pairs", "twice_both_ways", lambda x: F.interpolate(x, scale_factor=2) * 2, sized((2, 3, 5, 7)))
add("pairs", "shuffled", lambda x: F.pixel_shuffle(x, 2) * 2, sized((2, 8, 3, 5)))

# ---- what is made on the way: on the host, or on the device

add(
    "made",
    "table",
    lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    sized((5, 4)),
)
add("made", "moved", lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).to(x.device), sized((5, 4)))
add("made", "number", lambda x: x * torch.tensor(2.5), sized((5, 4)))
add("made", "range", lambda x: x + torch.arange(4.0).to(x.device), sized((5, 4)))
add("made", "number_of_the_host", lambda x: x * torch.arange(3.0)[1], sized((5, 4)))
add("made", "saved", lambda x: x * torch.arange(x.shape[0]).sum(), sized((5, 4)), gradients=True)
UNFUSED: dict[str, Any] = {"hosted": False, "fused": False}
add("made", "result_on_the_host", lambda x: (x + 1, torch.arange(3)), sized((5, 4)), **UNFUSED)
add("made", "leaves", lambda x: (x * 2).cpu() + 1, sized((5, 4)), **UNFUSED)
add("made", "returns", lambda x: ((x * 2).cpu() + 1).to(x.device) * x, sized((5, 4)), **UNFUSED)
add("made", "host_indices", lambda x: x[torch.randperm(1)] + 1, sized((5, 4)), **UNFUSED)
add("made", "argument", lambda x, y: x * y, sized((5, 4), ()), hosted=True, fused=False)

# ---- integers and bools

add(
    "integers",
    "arithmetic",
    lambda x, y: (x * y - x // (y.abs() + 1), x % (y.abs() + 2), x & y, x << 2),
    lambda: (integers(7, 33), integers(33)),
    lambda: (integers(7, 32, dtype=torch.int32), integers(7, 32, dtype=torch.int32)),
    lambda: (integers(7, 48, dtype=torch.uint8), integers(48, dtype=torch.uint8)),
    lambda: (integers(5, 13, dtype=torch.int8), integers(5, 13, dtype=torch.int8)),
)
add(
    "integers",
    "bools",
    lambda x, y: ((x > 0) & (y > 0), ~(x > 0) | (y < 0.5), (x > y).float() * x),
    sized((9, 64), (9, 64)),
    sized((9, 33), (33,)),
)
add(
    "integers",
    "dequantise",
    lambda q, s: q.float() * s,
    lambda: (integers(6, 96, dtype=torch.int8, most=100), normal(6, 1)),
)
add(
    "integers",
    "reduced",
    lambda x: (x.sum(-1), x.amax(-1), (x > 3).any(-1), (x > -9).all(-1), x.argmin(-1)),
    lambda: (integers(9, 100),),
    lambda: (integers(3, 7, dtype=torch.int32),),
    lambda: (integers(5, 300, dtype=torch.uint8),),
)

# ---- rows: a few threads, a warp, a block, more than a block holds

SOFTMAX = lambda x: x.softmax(-1)  # noqa: E731
COLS = (1, 2, 5, 8, 31, 64, 100, 513, 1024, 3000, 4096)
add("rows", "softmax", SOFTMAX, *[sized((5, n)) for n in COLS])
add("rows", "many", SOFTMAX, sized((1500, 3)), sized((300, 40)), sized((70, 256)))
add("rows", "one", SOFTMAX, sized((1, 1000)), sized((777,)))
NORM = lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b)  # noqa: E731
add("rows", "layer_norm", NORM, *[sized((6, n), (n,), (n,)) for n in (4, 37, 768, 2500)])
add("rows", "layer_norm_bf16", NORM, *[sized((6, n), (n,), (n,), dtype=BF16) for n in (8, 37, 768)])
add("rows", "layer_norm_half", NORM, *[sized((6, n), (n,), (n,), dtype=HALF) for n in (2, 96)])
add("rows", "layer_norm_double", NORM, *[sized((6, n), (n,), (n,), dtype=DOUBLE) for n in (6, 260)])
add(
    "rows",
    "unaligned",
    NORM,
    lambda: (off(normal(6, 64)), normal(64), off(normal(64), 2)),
    lambda: (off(normal(6, 64, dtype=BF16), 3), normal(64, dtype=BF16), normal(64, dtype=BF16)),
)
add(
    "rows",
    "strided",
    lambda x: x.log_softmax(-1),
    lambda: (normal(40, 6).t(),),
    lambda: (normal(6, 81)[:, ::2],),
    lambda: (normal(2, 3, 4, 10).permute(2, 0, 1, 3),),
    lambda: (normal(1, 50).expand(7, 50),),
)
GATED = lambda x, g, w: (  # noqa: E731
    x
    * torch.sigmoid(g)
    * torch.rsqrt((x * torch.sigmoid(g)).square().mean(-1, keepdim=True) + 1e-6)
    * w
)
add("rows", "gated_norm", GATED, *[sized((5, n), (5, n), (n,)) for n in (16, 33, 1024)])
add("long", "softmax", SOFTMAX, sized((3, 70_001)), sized((2, 80_000), dtype=BF16))
add("long", "layer_norm", NORM, sized((2, 66_000), (66_000,), (66_000,)))
add(
    "long",
    "several",
    lambda x: ((x - x.mean(-1, keepdim=True)).softmax(-1), x.argmax(-1)),
    sized((2, 68_003)),
)

# ---- rows that start anywhere in a vector: edges before and after the vectors, which move from row
# to row and are a thread's own where rows are summed; inputs that lie otherwise than the outputs

ODD_ROWS = ((19, 67), (37, 1001), (40, 131), (3, 9001))
add("shifted", "softmax", SOFTMAX, *[sized(shape, dtype=BF16) for shape in ODD_ROWS])
add("shifted", "layer_norm", NORM, *[sized(s, s[-1:], s[-1:]) for s in ODD_ROWS], gradients=True)
add(
    "shifted",
    "layer_norm_bf16",
    NORM,
    *[sized(s, s[-1:], s[-1:], dtype=BF16) for s in ((300, 75), (21, 2881), (3, 66_001))],
    gradients=True,
)
add(
    "shifted",
    "types",
    lambda x, keep, row: torch.where(keep, x.softmax(-1), row) + x.float().mean(-1, keepdim=True),
    lambda: (normal(21, 77, dtype=BF16), integers(21, 77) > 0, normal(77)),
    lambda: (normal(5, 1027), integers(1027) > 0, normal(5, 1, dtype=HALF)),
)
add(
    "shifted",
    "lying_otherwise",
    lambda x, y: (x + y).log_softmax(-1),
    lambda: (normal(9, 131)[:, 1:], off(normal(9, 130), 3)),
    lambda: (normal(4, 5, 99)[:, 1:4], normal(99, dtype=BF16)),
    lambda: (normal(101, 9).t(), normal(9, 202)[:, ::2]),
)
add(
    "shifted",
    "with_gaps",  # which make all rows start at a vector
    lambda x, w: ((x * w).logsumexp(-1), (x * w).amax(0)),
    lambda: (normal(21, 104)[:, :99], normal(99)),
    lambda: (normal(4, 5, 1008, dtype=BF16)[..., :1001].flatten(0, 1), normal(1001, dtype=BF16)),
    lambda: (normal(30, 80)[:, 4:77], normal(73)),
)
add(
    "shifted",
    "found",
    lambda x: (x.argmax(-1), x.logsumexp(-1), x.softmax(-1).sum(0)),
    lambda: (normal(35, 93).round(),),
    lambda: (normal(6, 771, dtype=BF16).round(),),
)
add(
    "shifted",
    "picked",
    lambda x, i: x.log_softmax(-1).gather(-1, i).neg() * (x.roll(1, -1) > 0).sum(-1, keepdim=True),
    lambda: (normal(9, 131), integers(9, 1, most=60).abs()),
    gradients=True,
)
add(
    "shifted",
    "cross_entropy",
    lambda x, t: F.cross_entropy(x.float(), t, ignore_index=7),
    lambda: (normal(9, 2051, dtype=BF16), integers(9).abs()),
    gradients=True,
)

# ---- losses: one term of a row, a softmax's sum in one pass, rows that nobody reduces


def whole(x: Tensor) -> Tensor:
    """Its width as a number of the source, as a model's weights make it."""
    return x + torch.zeros(2051, dtype=x.dtype, device=x.device)


def with_infinities(rows: int, columns: int) -> Tensor:
    x = normal(rows, columns)
    x[0], x[1, 3:], x[2, 5], x[3, columns // 2] = -torch.inf, -torch.inf, torch.inf, torch.nan
    return x


CROSS_ENTROPY = lambda x, t: F.cross_entropy(x.float(), t, ignore_index=7)  # noqa: E731
add(
    "losses",
    "cross_entropy",
    lambda x, t: CROSS_ENTROPY(whole(x), t),
    lambda: (normal(9, 2051, dtype=BF16), integers(9).abs()),
    lambda: (normal(5, 2051), integers(5).abs()),
    gradients=True,
)
add(
    "losses",
    "streamed",
    CROSS_ENTROPY,
    lambda: (normal(3, 16451, dtype=BF16), integers(3).abs()),
    lambda: (normal(2, 35008), integers(2).abs()),
    gradients=True,
)
add(
    "losses",
    "infinities",
    lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1),
    lambda: (with_infinities(6, 900),),
    lambda: (with_infinities(5, 9001),),
)
add(
    "losses",
    "outside",
    lambda x, t: torch.where(torch.arange(x.shape[1], device=x.device) == t, x * 2, 0.0).sum(-1),
    lambda: (normal(9, 70), integers(9, 1)),
)
add(
    "losses",
    "by_rows",
    lambda x, a, b, c: (whole(x) * a + b).exp() * c,
    sized((9, 2051), (9, 1), (9, 1), (2051,)),
    sized((9, 2051), (9, 1), (9, 1), (2051,), dtype=BF16),
)

# Zeros behind rows that the library takes, written where the rows are; beside a sum over rows, too.
add(
    "losses",
    "padded",
    lambda x, a: F.pad(whole(x).exp() * a, (0, 5)).sort(-1).values,
    sized((9, 2051), (9, 1)),
    sized((9, 2051), (9, 2051), dtype=BF16),
)
add(
    "losses",
    "padded_sums",
    lambda x: (F.pad(y := whole(x).exp(), (0, 5)).sort(-1).values, y.sum(0)),
    sized((40, 2051)),
)
add(
    "losses",
    "padded_softmax",
    lambda x: F.pad(whole(x).softmax(-1), (0, 5)).sort(-1).values,
    sized((9, 2051)),
)

# ---- offsets that need 64 bits

FAR = 3 << 30
add("far", "swish", SWISH, sized((3, 40), (3, 40)), sized((3, 7), (3, 1)), apart=FAR)
add("far", "softmax", SOFTMAX, sized((3, 40)), sized((3, 33), dtype=BF16), apart=FAR)
add("far", "norm", lambda x, w: NORM(x, w[0], w[1]), sized((3, 40), (2, 40)), apart=FAR)

# ---- several reductions of a row, and other results

add(
    "reductions",
    "chain",
    lambda x: (x - x.mean(-1, keepdim=True)).abs().amax(-1, keepdim=True) * x.softmax(-1),
    *[sized((5, n)) for n in (7, 64, 129, 1025)],
)
add(
    "reductions",
    "of_rows",
    lambda x: (x.sum(-1), x.var(-1), x.norm(dim=-1), x.logsumexp(-1), x.amin(-1)),
    *[sized((5, n)) for n in (3, 100, 1000)],
)
add(
    "reductions",
    "arguments",
    lambda x: (x.argmax(-1), x.argmin(-1), x.max(-1).values),
    sized((5, 3)),
    sized((5, 1000)),
    lambda: (normal(9, 70).round(),),
    lambda: (normal(9, 70, dtype=BF16).round(),),
    lambda: (normal(4, 36, dtype=DOUBLE).round(),),
)
add("reductions", "product", lambda x: (x.prod(-1), x.cumsum(-1)), sized((5, 11)), sized((4, 100)))
add(
    "reductions",
    "nan",
    lambda x: (x.amax(-1), x.softmax(-1), x.argmax(-1)),
    lambda: (with_nan(6, 90),),
)
add("reductions", "columns", lambda x: (x * 2).sum(0), sized((50, 24)), sized((3, 4, 5)))
add(
    "reductions",
    "everything",
    lambda x: (x.exp().mean(), x.amax()),
    sized((50, 24)),
    sized((9999,)),
)
add("reductions", "middle", lambda x: x.softmax(1) + x.mean(1, keepdim=True), sized((3, 20, 7)))
add("reductions", "two_dims", lambda x: x - x.mean((-1, -2), keepdim=True), sized((3, 4, 6, 5)))
add(
    "reductions",
    "group_norm",
    lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
    sized((3, 6, 5, 4), (6,), (6,)),
    # Channels that end inside a vector: one of 3 elements, of 7, and one of a single element.
    sized((2, 16, 3, 1), (16,), (16,), dtype=BF16),
    sized((2, 8, 7, 7), (8,), (8,), dtype=BF16),
    sized((2, 32, 1, 1), (32,), (32,)),
)

# ---- gradients

add("gradients", "swish", SWISH, sized((9, 64), (64,)), sized((9, 33), (9, 1)), gradients=True)
add(
    "gradients", "layer_norm", NORM, *[sized((6, n), (n,), (n,)) for n in (36, 300)], gradients=True
)
add("gradients", "softmax", SOFTMAX, sized((5, 130)), gradients=True)
add("gradients", "gated", GATED, sized((5, 33), (5, 33), (33,)), gradients=True)
# In float32 of narrower numbers: its backward makes it again from these.
add(
    "gradients",
    "wide_softmax",
    lambda x: x.float().softmax(-1).square().to(x.dtype),
    sized((5, 130), dtype=BF16),
    gradients=True,
)
add("gradients", "bf16", NORM, sized((6, 64), (64,), (64,), dtype=BF16), gradients=True)

# ---- sums over other dimensions than the last: of columns, of everything, of what was broadcast

add(
    "sums",
    "columns",
    lambda x: (x * 2).sum(0),
    sized((500, 24)),
    sized((1000, 3)),
    sized((40, 1000)),
    sized((70, 64), dtype=BF16),
    sized((300, 5), dtype=DOUBLE),
    lambda: (normal(90, 20).t(),),
)
add("sums", "middle", lambda x: x.square().sum((0, 2)), sized((5, 6, 35)), sized((50, 64, 3)))
add("sums", "all", lambda x: x.square().sum(), sized((70, 70)), sized((4, 5000)), sized((3,)))
# Of everything, in parts: what follows is in the kernel that adds these up.
add("sums", "column", lambda x: (x * x).sum(0) / len(x), sized((330, 1)))
add(
    "sums",
    "loss",
    lambda x, m: ((x * m).abs().sum((0, 1), keepdim=True) / m.abs().sum()).sqrt() * 2,
    sized((70, 300), (70, 300)),
    lambda: (normal(1, 1).abs(), normal(1, 1).abs()),
    lambda: (normal(300, 90).t()[::2], normal(45, 300)),  # no two dimensions are one
    sized((4, 700), (4, 700), dtype=BF16),
    sized((2, 900), (2, 900), dtype=DOUBLE),
)
add("sums", "two", lambda x: (x.exp().sum(0), x.exp() + 1, (x * 3).sum(0)), sized((130, 36)))
# More than one launch adds up, and not all of one dtype.
add(
    "sums",
    "six",
    lambda x: (*[(x * k).sum(0) for k in range(1, 4)], *[(x + k).float().sum(0) for k in range(3)]),
    sized((130, 36), dtype=HALF),
    sized((90, 700)),
)
add("sums", "of_rows", lambda x: x.softmax(-1).mean(0), sized((100, 8)), sized((50, 300)))
add(
    "sums",
    "layer_norm",
    NORM,
    *[sized((rows, n), (n,), (n,)) for rows, n in ((100, 8), (300, 100), (40, 1500), (2, 66_000))],
    sized((90, 64), (64,), (64,), dtype=BF16),
    gradients=True,
)
add(
    "sums",
    "broadcast",
    lambda x, w: torch.sin(x * w),
    sized((5, 6, 35), (6, 1)),
    sized((40, 6), (40, 1)),
    sized((40, 64), ()),
    gradients=True,
)

# ---- sums over the rows of each segment: gradients of what a sample's tokens share, several of
# them and beside sums over all rows; rows of one block that a segment does not fill, shifted rows,
# rows that no block holds, and segments so short that the library adds up their terms


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def modulated_twice(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias) * scale.unsqueeze(1)


def samples(*shapes: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> list[Any]:
    return [sized(s, (s[0], s[2]), (s[0], s[2]), dtype=dtype) for s in shapes]


add(
    "segments",
    "modulated",
    modulated,
    *samples((3, 50, 64), (1, 40, 64), (2, 1, 2100), (4, 700, 8), (300, 30, 72), (5, 2, 40)),
    *samples((3, 19, 132), (2, 50, 300), dtype=BF16),
    *samples((2, 40, 64), dtype=DOUBLE),
    gradients=True,
)
add(
    "segments",
    "shifted",
    modulated,
    *samples((3, 50, 67), (5, 3, 1001), (2, 19, 131)),
    *samples((3, 70, 75), (2, 9, 2881), (2, 5, 1001), dtype=BF16),
    gradients=True,
)
add("segments", "long", modulated, *samples((2, 3, 66_000), (2, 17, 9001)), gradients=True)
add(
    "segments",
    "beside_weights",
    modulated_twice,
    sized((3, 40, 64), (64,), (64,), (3, 64)),
    sized((2, 21, 131), (131,), (131,), (2, 131), dtype=BF16),
    sized((3, 2, 16), (16,), (16,), (3, 16)),
    gradients=True,
)
add(
    "segments",
    "of_heads",
    lambda x, y: ((x.softmax(-1) * y).sum((1, 2)), (x.softmax(-1) * y).sum(2)),
    sized((2, 3, 20, 130), (2, 3, 20, 130)),
    sized((2, 3, 9, 300), (3, 9, 300)),
    lambda: (normal(2, 20, 3, 130).transpose(1, 2), normal(130, dtype=BF16)),
)
add(
    "segments",
    "of_elements",
    lambda x, y: ((x * y).sum(1), x - y, (x + y).square().sum(1)),
    sized((3, 50, 64), (3, 50, 64)),
    sized((2, 300, 7), (300, 7)),
    sized((70, 3, 40), (70, 1, 40), dtype=BF16),
    sized((2, 33, 1025), (1025,), dtype=DOUBLE),
    lambda: (normal(4, 60, 16)[:, ::2], normal(4, 16, 30).transpose(1, 2)),
)


def with_nan(*shape: int) -> Tensor:
    x = normal(*shape)
    x[0, 3], x[1, 5], x[2, -1] = float("nan"), float("inf"), -float("inf")
    x[3] = -float("inf")
    return x


QUICK = {
    "pointwise": ["whole-4", "unaligned-1", "layouts-0", "bf16-1"],
    "rows": ["softmax-4", "softmax-9", "layer_norm_bf16-2", "many-1"],
    "shifted": ["layer_norm-0", "lying_otherwise-0"],
    "reductions": ["arguments-3", "of_rows-1"],
    "segments": ["modulated-0", "shifted-3", "beside_weights-0", "of_elements-0"],
}
