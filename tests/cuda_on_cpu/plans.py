"""Launches that are planned and hardly run: more elements than an emulator gets through.

The driver refuses grids, blocks and shared memory that no GPU has. Beyond that, offsets of 2³¹ and
more need an index of 64 bits; where the first and the last block are run, they must stay inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cuda_on_cpu.gpu import Gpu
from megafuse.compiler import fuse
from megafuse.runtime import fallback

_WIDE = re.compile(r"Cuda<Kernel,[^;]* mf::i64")
BYTES = torch.uint8  # so that 2³² of them are 4 GiB of addresses, which nobody touches

Draw = Callable[[], tuple[Any, ...]]


def of(*shape: int, dtype: torch.dtype = BYTES) -> Draw:
    return lambda: (torch.empty(shape, dtype=dtype, device="cuda"),)


# Name → function, arguments, whether an index needs 64 bits, and which blocks are run.
PLANS: dict[str, tuple[Callable[..., Any], Draw, bool, str]] = {
    "pointwise": (lambda x: x + 1, of(3 << 30), True, "edges"),
    "just_below": (lambda x: x + 1, of((1 << 31) - (1 << 26)), False, "edges"),
    # More than 2³⁰ elements, but in groups of eight.
    "turned": (lambda x: x + x.t(), of(33_000, 33_000), False, "edges"),
    "broadcast": (lambda x: x[:, None] + x, of(70_000), True, "edges"),
    "rows": (lambda x: x.amax(-1), of(1 << 21, 2048), True, "edges"),
    "many_rows": (lambda x: x.amax(-1), of(600_000_000, 2), False, "edges"),
    # More than 2³⁰ rows: a thread that adds the grid to its row is past 2³¹.
    "rows_of_one": (lambda x: x.amax(-1), of(1_500_000_000, 1), True, "edges"),
    "long_rows": (lambda x: x.amax(-1), of(2, 3 << 30), True, "none"),
    "more_rows_than_y_takes": (lambda x: x.argmax(-1), of(100_000, 40), False, "edges"),
    "columns": (lambda x: x.float().sum(0), of(100_000, 640), False, "none"),
}


def problems(gpu: Gpu) -> Iterator[tuple[str, str]]:
    for name, (function, draw, wide, share) in PLANS.items():
        gpu.share(share)
        gpu.sources.clear()
        problem = ""
        try:
            with fallback.strict(), torch.no_grad():
                fuse(function)(*draw())
            if wide != any(_WIDE.search(source) for source in gpu.sources):
                problem = f"an index of {32 if wide else 64} bits"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        yield f"plans:{name}", problem if gpu.sources else f"no kernel was asked for. {problem}"
    gpu.share("all")
