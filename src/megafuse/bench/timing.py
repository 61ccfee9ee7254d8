"""Times several ways to do one thing, so that the comparison is fair.

Contenders take turns (A, B, C, B, C, A, …), so a machine that slows down slows all of them. The
median counts; its spread is the 10th to the 90th percentile of the samples. Clocks:

- "cold": one call that finds nothing in the cache. A buffer larger than the last-level cache is
  read before, so that its lines are clean: written ones would go back to memory in the window.
  CUDA is timed by events, after a head start in which the host queues the call, so that the time
  is the device's; where it was too short the sample is taken again. The CPU is timed by
  `time.perf_counter`.
- "warm": the same, right after a call on the same arguments. On the CPU as many calls as make a
  sample long enough to read.
- "wall": many calls in a row and one wait for the device: what a loop of small calls costs.
- "host": the same without the wait: how long the host is busy with a call.

All streams of the device are idle before and after each sample.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

Contender = Callable[[int], object]
Clock = Literal["cold", "warm", "wall", "host"]

_SAMPLE_SECONDS = 100e-6  # perf_counter resolves about 0.1 µs: a sample this long errs by 0.1 %
# A kernel that only waits, before the window. 2 GHz: no GPU that runs this is clocked higher by
# much, and a lower clock makes the wait longer, which does no harm.
_CYCLES_PER_SECOND = 2e9
_HEAD_START = 150e-6
_LONGEST_HEAD_START = 20e-3
# Calls of a "wall" sample on CUDA: so many, or fewer where they are long.
_IN_A_ROW, _LEAST_IN_A_ROW, _IN_A_ROW_SECONDS = 200, 5, 20e-3
# Calls of a "host" sample: few enough that the driver queues all of them (it holds about a thousand
# launches, and a block's backward is fifty), and that long ones do not take a second.
_QUEUED, _LEAST_QUEUED, _QUEUED_SECONDS = 60, 5, 10e-3
_CHECK_EVERY = 5  # rounds between two looks at the spread
_LEAST_ROUNDS = 10


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median, and the 10th and 90th percentile around it."""

    median: float
    low: float
    high: float
    samples: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.samples)

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        return Timing(*_spread(samples), tuple(samples))

    @property
    def uncertainty(self) -> float:
        """The median's standard error, as a fraction of it, where noise is normal."""
        return 0.49 * (self.high - self.low) / math.sqrt(self.n) / self.median

    def overlaps(self, other: Timing) -> bool:
        """Whether the spreads overlap: then which one is faster is ambiguous."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Ratio:
    """How many times longer one thing takes than another: median and spread of the rounds."""

    median: float
    low: float
    high: float


def compare(
    contenders: Mapping[str, Contender],
    *,
    device: torch.device | str = "cpu",
    clock: Clock = "cold",
    budget: float = 2.0,
    precision: float = 0.003,
    warmup: int = 3,
    refresh: Callable[[int], object] | None = None,
    rounds: int = _LEAST_ROUNDS,
) -> dict[str, Timing]:
    """Times each contender, called with the number of the round.

    `refresh`, called with it before each round, can renew the arguments: all contenders of a round
    get the same. Stops when every median is known to within `precision` (a fraction), or after
    `budget` seconds in all, warm-up not counted, but not before so many `rounds`.
    """
    if not contenders:
        return {}
    where = torch.device(device)
    for contender in contenders.values():
        for _ in range(warmup):
            contender(0)
    samplers = {name: _sampler(c, where, clock) for name, c in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    end = time.perf_counter() + budget
    done = 0
    while done < rounds or time.perf_counter() < end:
        if refresh is not None:
            refresh(done)
        first = done % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(samplers[name](done))
        done += 1
        if done >= rounds and done % _CHECK_EVERY == 0 and _settled(samples, precision):
            break
    return {name: Timing.of(taken) for name, taken in samples.items()}


def speedup(slow: Timing, fast: Timing) -> Ratio:
    """slow/fast, round by round: samples of one round were taken next to each other."""
    return Ratio(*_spread([a / b for a, b in zip(slow.samples, fast.samples, strict=True)]))


# ---- one sample

Sampler = Callable[[int], float]


def _sampler(contender: Contender, device: torch.device, clock: Clock) -> Sampler:
    if clock in ("wall", "host"):
        return _in_a_row(contender, device, wait=clock == "wall")
    if device.type == "cuda":
        return _by_events(contender, device, cold=clock == "cold")
    if clock == "cold":
        return _cold_on_cpu(contender)
    return _in_a_row(contender, device, wait=True)


def _in_a_row(contender: Contender, device: torch.device, wait: bool) -> Sampler:
    if device.type == "cuda":
        took = min(_seconds(contender, 0, 1, device, wait=True) for _ in range(3))
        calls = _looped(took) if wait else _queued(took)
    else:
        took = min(_seconds(contender, 0, 1, device, wait) for _ in range(3))
        calls = max(1, math.ceil(_SAMPLE_SECONDS / max(took, 1e-9)))
    return lambda i: _seconds(contender, i, calls, device, wait)


def _looped(took: float) -> int:
    """How many calls to time in a row, of which one takes so long: 20 ms, or 5 calls, at least."""
    return max(_LEAST_IN_A_ROW, min(_IN_A_ROW, int(_IN_A_ROW_SECONDS / took)))


def _queued(took: float) -> int:
    """How many calls to queue, of which one takes so long until the device is done."""
    return max(_LEAST_QUEUED, min(_QUEUED, int(_QUEUED_SECONDS / took)))


def _seconds(contender: Contender, i: int, calls: int, device: torch.device, wait: bool) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        contender(i)
    if wait:
        _wait(device)
    took = time.perf_counter() - start
    _wait(device)
    return took / calls


def _cold_on_cpu(contender: Contender) -> Sampler:
    flush = Flush("cpu")

    def sample(i: int) -> float:
        flush()
        start = time.perf_counter()
        contender(i)
        return time.perf_counter() - start

    return sample


def _by_events(contender: Contender, device: torch.device, cold: bool) -> Sampler:
    flush = Flush(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    host = min(_seconds(contender, 0, 1, device, wait=False) for _ in range(3))
    head_start = _HEAD_START + 2 * host

    def sample(i: int) -> float:
        nonlocal head_start
        while True:
            if cold:
                flush()
            else:
                contender(i)
            _wait(device)
            torch.cuda._sleep(int(head_start * _CYCLES_PER_SECOND))
            start.record(stream)
            contender(i)
            end.record(stream)
            too_late = start.query()  # the window opened before all was queued
            _wait(device)
            if not too_late or head_start >= _LONGEST_HEAD_START:
                return float(start.elapsed_time(end)) * 1e-3
            head_start *= 2

    return sample


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---- the cache


class Flush:
    """Fills the last-level cache with something else, and leaves no line to be written back."""

    def __init__(self, device: torch.device | str) -> None:
        self._buffer = _flush_buffer(torch.device(device))

    def __call__(self) -> None:
        self._buffer.amax()


@functools.cache
def _flush_buffer(device: torch.device) -> torch.Tensor:
    # Twice the cache, so that nothing survives its not quite least-recently-used order; on the
    # CPU, where reading takes long, a quarter more.
    factor = 2.0 if device.type == "cuda" else 1.25
    size = max(int(factor * cache_bytes(device)), 1 << 24)
    # Ones: fresh zeros are one page of the system, mapped many times.
    return torch.ones(size // 4, dtype=torch.float32, device=device)


def cache_bytes(device: torch.device | str) -> int:
    """The last-level cache: a GPU's L2, or what the CPU's cores can hold in theirs together."""
    where = torch.device(device)
    if where.type == "cuda":
        return int(torch.cuda.get_device_properties(where).L2_cache_size)
    return _cpu_cache_bytes()


@functools.cache
def _cpu_cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """L2 and L3, each instance once; 32 MiB where the system does not tell."""
    seen: dict[tuple[str, str], int] = {}
    for index in root.glob("cpu[0-9]*/cache/index*"):
        try:
            level, shared, size = (
                (index / name).read_text().strip() for name in ("level", "shared_cpu_list", "size")
            )
        except OSError:
            continue
        told = re.fullmatch(r"(\d+)([KMG]?)", size)
        if told and level in ("2", "3"):
            unit = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[told[2]]
            seen[level, shared] = int(told[1]) * unit
    return sum(seen.values()) or 1 << 25


# ---- statistics


def _spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """(median, 10th percentile, 90th percentile)."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    return tenths[4], tenths[0], tenths[8]


def _settled(samples: Mapping[str, list[float]], precision: float) -> bool:
    return all(Timing.of(taken).uncertainty <= precision for taken in samples.values())
