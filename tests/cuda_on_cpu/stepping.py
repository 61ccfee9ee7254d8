"""Optimizers' kernels in the emulator, held against the CPU's on the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from optim.cases import KINDS, SHAPES, stepped

import megafuse as mf
from cuda_on_cpu.gpu import ORDERS, Gpu
from megafuse.runtime import loader

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def problems(gpu: Gpu) -> Iterator[tuple[str, str]]:
    SHAPES.remove((0, 4))  # the pretended device copies nothing of no size
    for at, (name, how) in enumerate(KINDS):
        gpu.order(ORDERS[at % len(ORDERS)])
        for dtype in DTYPES if at % 3 == 0 else DTYPES[:1]:
            yield f"{name} {how} {dtype}", _tried(name, how, dtype)


def _tried(name: str, how: dict[str, Any], dtype: torch.dtype) -> str:
    kind = getattr(mf.optim, name)
    host: Any = loader.load()
    before = host.launch_count()
    found = stepped(kind, how, dtype, "cuda")
    if host.launch_count() - before != 6:
        return f"{host.launch_count() - before} launches in 6 steps"
    expected = stepped(kind, how, dtype)
    for mine, right in zip(found, expected, strict=True):
        if not torch.equal(mine.detach().cpu(), right.detach()):
            return f"{tuple(right.shape)} has other bits than on the CPU"
    return ""
