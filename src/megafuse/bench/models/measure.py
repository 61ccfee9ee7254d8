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


def measure(
    work: Work, step: Callable[[], None], who: Contender, device: str, budget: float
) -> Any:
    """As JSON. Steps run back to back, as in a loop; a sample ends when the device is done."""
    if device == "cuda":
        return _on_cuda(step, who, budget)
    taken = _times(step, "cpu", budget)
    seen = traffic.watch(step, "cpu")
    found = {"times": taken, "peak_bytes": _bytes(work) + seen.peak_extra_bytes}
    if who.name in ("compile", "reduce-overhead", "max-autotune"):
        return found | {"missing": {"launches": "the profiler does not see compiled CPU kernels"}}
    return found | {"launches": len(seen.kernels)}


def _on_cuda(step: Callable[[], None], who: Contender, budget: float) -> Any:
    gc.collect()
    torch.cuda.empty_cache()  # what was only needed to compile
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    taken = _times(step, "cuda", budget)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    traffic.device_work(step)  # the profiler's own first time takes seconds, and may miss kernels
    busy, launches = traffic.device_work(step)
    return {
        "times": taken,
        "busy": busy,
        "launches": launches,
        # A replayed graph allocates nothing: what it holds counts instead.
        "peak_bytes": reserved if who.graphs else peak,
        "reserved_bytes": reserved,
    }


def _times(step: Callable[[], None], device: str, budget: float) -> list[float]:
    """Median, 10th and 90th percentile, and how many samples."""
    called: dict[str, timing.Contender] = {"step": lambda _: step()}
    how: Any = {"clock": "wall", "budget": budget, "warmup": 1, "rounds": ROUNDS}
    found = timing.compare(called, device=device, **how)["step"]
    return [found.median, found.low, found.high, found.n]


def _bytes(work: Work) -> int:
    """Parameters, buffers, the optimizer's state, arguments: tied weights once."""
    by_address = {t.data_ptr(): t.untyped_storage().nbytes() for t in work.kept()}
    return sum(by_address.values())
