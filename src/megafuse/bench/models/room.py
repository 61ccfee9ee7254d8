"""Whether a model fits into what memory is left: a machine that swaps measures nothing."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from megafuse.bench.models.case import Case

SHARE = 0.8  # of what is free: activations are not counted


class NoRoom(MemoryError):
    """There is too little memory; the message has the numbers."""


def refuse(case: Case, itemsize: int, optimizes: bool) -> None:
    """Raises NoRoom where weights, gradients and AdamW's moments alone would not fit."""
    copies = 1 if case.mode != "train" else 4 if optimizes else 2
    needed, free = copies * itemsize * _parameters(case), free_bytes(case.device)
    if free is not None and needed > SHARE * free:
        raise NoRoom(
            f"needs {needed / 1e9:.1f} GB and more for its weights, of which {free / 1e9:.1f} are "
            "free"
        )


def _parameters(case: Case) -> int:
    with torch.device("meta"):
        model: nn.Module = case.of.make(case.tiny)
    return sum(p.numel() for p in model.parameters())


def free_bytes(device: str) -> int | None:
    """None where the system does not tell."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        told = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", told)
    return int(found[1]) << 10 if found else None
