"""Runs a function on several ranks, each a process: no ports, and nobody waits for ever."""

from __future__ import annotations

import datetime
import faulthandler
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

needs_gloo = pytest.mark.skipif(
    os.name == "nt" or not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo"
)
SECONDS = 900  # for all of it: the first run compiles kernels
HANGS = datetime.timedelta(seconds=120)  # one collective


def on_ranks(
    count: int, function: Callable[..., Any], folder: Path, *args: Any, backend: str = "gloo"
) -> list[Any]:
    """What function(rank, *args) returns on each rank, in their order."""
    started = torch.multiprocessing.spawn(
        _run, (count, function, str(folder), args, backend), nprocs=count, join=False
    )
    end = time.monotonic() + SECONDS
    try:
        while not started.join(timeout=5):
            if time.monotonic() > end:
                pytest.fail(f"{function.__name__} on {count} ranks took over {SECONDS} s")
    finally:
        for process in started.processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _run(
    rank: int, count: int, function: Callable[..., Any], folder: str, args: Any, backend: str
) -> None:
    from megafuse.runtime import fallback

    faulthandler.enable()  # a rank that crashes says where
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = f"file://{folder}/store"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=HANGS)
    with fallback.strict():
        found = function(rank, *args)
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()
