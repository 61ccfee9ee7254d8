"""Launches that are planned and not run: more elements than an emulator gets through.

The driver refuses grids, blocks and shared memory that no GPU has. Beyond that, every element must
have a thread that gets to it, and offsets of 2³¹ and more need an index of 64 bits.
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


# Name → function, arguments, elements of the index space, whether that needs 64 bits.
PLANS: dict[str, tuple[Callable[..., Any], Draw, int, bool]] = {
    "pointwise": (lambda x: x + 1, of(3 << 30), 3 << 30, True),
    "just_below": (lambda x: x + 1, of((1 << 31) - (1 << 26)), (1 << 31) - (1 << 26), False),
    "broadcast": (lambda x: x[:, None] + x, of(70_000), 70_000 * 70_000, True),
    "rows": (lambda x: x.amax(-1), of(1 << 21, 2048), 1 << 32, True),
    "many_rows": (lambda x: x.amax(-1), of(600_000_000, 2), 1_200_000_000, False),
    "long_rows": (lambda x: x.amax(-1), of(2, 3 << 30), 3 << 31, True),
    "more_rows_than_y_takes": (lambda x: x.argmax(-1), of(100_000, 40), 4_000_000, False),
    "columns": (lambda x: x.float().sum(0), of(100_000, 640), 64_000_000, False),
}


def problems(gpu: Gpu) -> Iterator[tuple[str, str]]:
    gpu.dry(True)
    for name, (function, draw, elements, wide) in PLANS.items():
        gpu.sources.clear()
        try:
            with fallback.strict(), torch.no_grad():
                fuse(function)(*draw())
            yield name, told(gpu, elements, wide)
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"
    gpu.dry(False)


def told(gpu: Gpu, elements: int, wide: bool) -> str:
    if not gpu.sources:
        return "no kernel was asked for"
    if wide != any(_WIDE.search(source) for source in gpu.sources):
        return f"an index of {32 if wide else 64} bits for {elements} elements"
    return ""
