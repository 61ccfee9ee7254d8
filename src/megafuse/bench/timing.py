"""Times several ways to do one thing, so that the comparison is fair.

Contenders take turns (A, B, A, B, …), so a machine that slows down slows all of them. The median
counts, and the middle half of the samples is its spread. Two clocks:

- "device": on CUDA, events around one call, with the L2 cache overwritten before the first event,
  so that inputs come from memory. On the CPU, `time.perf_counter` around as many calls as make a
  sample long enough to read; nothing is flushed.
- "wall": `time.perf_counter` around many calls in a row and one wait for the device: what a loop
  of small calls really costs, launch overhead included.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Contender = Callable[[int], object]
Clock = Literal["device", "wall"]

_SAMPLE_SECONDS = 100e-6  # perf_counter resolves about 0.1 µs: a sample this long errs by 0.1 %
# GPU cycles (about 0.3 ms) of waiting before a sample, in which the host prepares the call: the
# kernels are timed then, not the host. torch.compile takes up to 0.1 ms to launch.
_HEAD_START = 500_000
_CHECK_EVERY = 5  # rounds between two looks at the spread
_LEAST_ROUNDS = 10


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.samples)

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        return Timing(*_quartiles(samples), tuple(samples))

    @property
    def uncertainty(self) -> float:
        """The median's standard error, as a fraction of it: 0.93·IQR/√n where noise is normal."""
        return 0.93 * (self.high - self.low) / math.sqrt(self.n) / self.median


@dataclass(frozen=True)
class Ratio:
    """How many times longer one thing takes than another: median and quartiles of the rounds."""

    median: float
    low: float
    high: float


def compare(
    contenders: Mapping[str, Contender],
    *,
    device: torch.device | str = "cpu",
    clock: Clock = "device",
    budget: float = 2.0,
    precision: float = 0.003,
    warmup: int = 3,
) -> dict[str, Timing]:
    """Times each contender, called with the number of the repeat.

    The number lets a contender walk through several sets of inputs: `lambda i: f(*sets[i % 4])`.
    Stops when every median is known to within `precision` (a fraction), or after `budget` seconds
    in all, warm-up not counted, but not before 10 rounds.
    """
    if not contenders:
        return {}
    where = torch.device(device)
    for contender in contenders.values():
        for i in range(warmup):
            contender(i)
    sample = _sampler(where, clock)
    calls = {name: _calls(c, where, clock) for name, c in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    index = dict.fromkeys(contenders, 0)
    end = time.perf_counter() + budget
    rounds = 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        for name, contender in contenders.items():
            samples[name].append(sample(contender, index[name], calls[name]))
            index[name] += calls[name]
        rounds += 1
        if rounds >= _LEAST_ROUNDS and rounds % _CHECK_EVERY == 0 and _settled(samples, precision):
            break
    return {name: Timing.of(taken) for name, taken in samples.items()}


def speedup(slow: Timing, fast: Timing) -> Ratio:
    """slow/fast, round by round: samples of one round were taken next to each other."""
    return Ratio(*_quartiles([a / b for a, b in zip(slow.samples, fast.samples, strict=True)]))


# ---- one sample

_Sample = Callable[[Contender, int, int], float]


def _sampler(device: torch.device, clock: Clock) -> _Sample:
    if device.type == "cuda" and clock == "device":
        return _by_events(device)
    return _by_wall_clock(device)


def _by_wall_clock(device: torch.device) -> _Sample:
    def sample(contender: Contender, first: int, calls: int) -> float:
        _wait(device)
        start = time.perf_counter()
        for i in range(first, first + calls):
            contender(i)
        _wait(device)
        return (time.perf_counter() - start) / calls

    return sample


def _by_events(device: torch.device) -> _Sample:
    # Twice the L2, so that nothing of the last call survives.
    size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    flush = torch.empty(max(size, 1 << 24), dtype=torch.uint8, device=device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)

    def sample(contender: Contender, first: int, calls: int) -> float:
        total = 0.0
        for i in range(first, first + calls):
            flush.zero_()
            torch.cuda._sleep(_HEAD_START)
            start.record(stream)
            contender(i)
            end.record(stream)
            end.synchronize()
            total += start.elapsed_time(end) * 1e-3
        return total / calls

    return sample


def _calls(contender: Contender, device: torch.device, clock: Clock) -> int:
    """How many calls one sample holds: one under events, else enough to be read off the clock."""
    if device.type == "cuda":
        return 1 if clock == "device" else 200
    took = min(_by_wall_clock(device)(contender, i, 1) for i in range(3))
    return max(1, math.ceil(_SAMPLE_SECONDS / max(took, 1e-9)))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- statistics


def _quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """(median, lower, upper)."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, low, high


def _settled(samples: Mapping[str, list[float]], precision: float) -> bool:
    return all(Timing.of(taken).uncertainty <= precision for taken in samples.values())
