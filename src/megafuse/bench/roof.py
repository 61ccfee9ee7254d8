"""The roofs: how fast this machine copies, reads and multiplies matrices at best, measured.

Measured once per machine and kept in the cache; `megafuse bench --measure-roofs` measures again.
A roof is the fastest tenth of its samples, not the median: nothing may look better than it by
luck.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch

from megafuse.bench import machine, timing
from megafuse.bench.result import Roofs
from megafuse.bench.timing import compare
from megafuse.runtime import cache

_FILE = "roofs.json"
_BUDGET = 0.5
# Sides of the square matrices: large enough to reach the rate, small enough to be done soon.
_SIDES = {
    "cuda": {"float32": 4096, "bfloat16": 8192, "float16": 8192, "float64": 4096},
    "cpu": {"float32": 1536, "bfloat16": 1024, "float64": 1024},
}
# Seconds that one product may take, and the side of one that tells beforehand.
_LONGEST, _PROBE = 0.5, 64


def roofs(device: str, again: bool = False) -> Roofs:
    """This machine's, from the cache or measured now."""
    key = _key(device)
    if again:
        (cache.directory() / key[:2] / key / _FILE).unlink(missing_ok=True)
    path = cache.get(key, _FILE, lambda out: _write(out, device))
    return Roofs(**json.loads(path.read_text()))


def _key(device: str) -> str:
    told = machine.about(device)
    return cache.key("roofs", json.dumps(told, sort_keys=True), torch.__version__)


def _write(path: Path, device: str) -> None:
    path.write_text(json.dumps(asdict(measure(device))))


def measure(device: str) -> Roofs:
    """Takes a few seconds."""
    with torch.no_grad():
        copy, read = _memory(device)
        gemm = {name: _gemm(device, name, side) for name, side in _SIDES[device].items()}
        launch = _launch() if device == "cuda" else None
    return Roofs(copy, read, gemm, launch, date.today().isoformat())


def _memory(device: str) -> tuple[float, float]:
    size = max(8 * timing.cache_bytes(device), 1 << 29) if device == "cuda" else 1 << 29
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source).fill_(0)
    copied = _best(lambda i: target.copy_(source), device)
    read = _best(lambda i: source.amax(), device)
    return 2 * size / copied, size / read


def _gemm(device: str, dtype: str, side: int) -> float:
    """Floating-point operations per second.

    A product that would take longer than half a second is measured on smaller matrices. PyTorch has
    no fast bfloat16 where a CPU has no instructions for it (a Neoverse-N1: 0.1 GFLOP/s, 20 s for
    a product of 1024 a side), and the rate there is the same at every size.
    """
    a, b = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if device == "cpu":
        small = _seconds(*(t[:_PROBE, :_PROBE].contiguous() for t in (a, b)))
        while side >= 2 * _PROBE and small * (side / _PROBE) ** 3 > _LONGEST:
            side //= 2
    a, b = (t[:side, :side].contiguous() for t in (a, b))
    out = torch.empty_like(a)
    return 2.0 * side**3 / _best(lambda i: torch.mm(a, b, out=out), device)


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of one product, the faster of two: the first may set something up."""
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        torch.mm(a, b)
        taken.append(time.perf_counter() - start)
    return min(taken)


def _launch() -> float:
    """The least time between two events with a kernel in between."""
    x = torch.empty(1, device="cuda")
    return _best(lambda i: x.fill_(0), "cuda")


def _best(call: Callable[[int], object], device: str) -> float:
    (taken,) = compare({"": call}, device=device, clock="cold", budget=_BUDGET).values()
    return taken.low
