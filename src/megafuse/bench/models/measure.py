"""A step's time, the device's share of it, launches and memory, of a model that is warm."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from megafuse.bench import timing, traffic
from megafuse.bench.models.contenders import Contender
from megafuse.bench.models.work import Work

ROUNDS = 5  # at least
Step = Callable[[], None]


def times_and_memory(step: Step, who: Contender, device: str, budget: float) -> dict[str, Any]:
    """Steps run back to back, as in a loop; a sample ends when the device is done."""
    if device != "cuda":
        return {"times": _times(step, device, budget)}
    gc.collect()
    torch.cuda.empty_cache()  # what was only needed to compile
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    taken = _times(step, device, budget)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    # A replayed graph allocates nothing: what it holds counts instead.
    shown = reserved if who.graphs else peak
    return {"times": taken, "peak_bytes": shown, "reserved_bytes": reserved}


def profiled(work: Work, step: Step, who: Contender, device: str) -> dict[str, Any]:
    """What the profiler tells: launches; on CUDA the device's time, on a CPU memory."""
    if device == "cuda":
        traffic.device_work(step)  # the profiler's first time takes seconds, and may miss kernels
        busy, launches = traffic.device_work(step)
        if not launches:
            return {"missing": {"busy": "the profiler saw no kernels"}}
        return {"busy": busy, "launches": launches}
    seen = traffic.watch(step, device)
    found: dict[str, Any] = {"peak_bytes": _bytes(work) + seen.peak_extra_bytes}
    if who.compiles:
        return found | {"missing": {"launches": "the profiler does not see compiled CPU kernels"}}
    return found | {"launches": len(seen.kernels)}


def _times(step: Step, device: str, budget: float) -> list[float]:
    """Median, 10th and 90th percentile, and how many samples."""
    called: dict[str, timing.Contender] = {"step": lambda _: step()}
    how: Any = {"clock": "wall", "budget": budget, "warmup": 1, "rounds": ROUNDS}
    found = timing.compare(called, device=device, **how)["step"]
    return [found.median, found.low, found.high, found.n]


def _bytes(work: Work) -> int:
    """Parameters, buffers, the optimizer's state, arguments: tied weights once."""
    by_address = {t.data_ptr(): t.untyped_storage().nbytes() for t in work.kept()}
    return sum(by_address.values())
