"""How long a new process takes to its first fused result."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from megafuse.bench.result import Span
from megafuse.bench.timing import Timing

_FIRST = (
    "import time; t = time.perf_counter(); import torch; a = time.perf_counter(); "
    "import megafuse as mf; mf.gelu_scale(torch.ones(1024), 1.7); "
    "print(a - t, time.perf_counter() - a)"
)


def measure(repeats: int = 5) -> dict[str, Span]:
    """Seconds of fresh processes, on a CPU tensor: torch alone, and what comes on top of it."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _seconds(cache)
        warm = [_seconds(cache) for _ in range(repeats)]
    return {
        "import torch": _span([torch_alone for torch_alone, _ in warm]),
        "first result after it, warm cache": _span([after for _, after in warm]),
        "first result after it, everything compiled": _span([cold[1]]),
    }


def _seconds(cache: str) -> tuple[float, float]:
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(p for p in (package, os.environ.get("PYTHONPATH")) if p)
    env = {**os.environ, "MEGAFUSE_CACHE": cache, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", _FIRST], env=env, capture_output=True, text=True, check=True
    )
    torch_alone, after = map(float, ran.stdout.split())
    return torch_alone, after


def _span(samples: list[float]) -> Span:
    taken = Timing.of(samples)
    return Span(taken.median, taken.low, taken.high, taken.n)
