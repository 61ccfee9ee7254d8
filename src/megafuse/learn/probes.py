"""This machine's own numbers: arithmetic in registers, each level of cache, memory, a call.

Each is a loop of one kind only (ladder/kernels/probes.cpp and .cu), on all threads, and the fastest
tenth of its samples: a probe asks what the machine can do, not what it did while disturbed.
Latency is the median step of one thread along a chain of addresses.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from megafuse.bench import timing
from megafuse.bench.timing import Clock, Timing, compare
from megafuse.learn.ladder import launch
from megafuse.learn.ladder.launch import Grid, read, write
from megafuse.runtime import build, cpp

_FILE = "probes"
_ROUNDS = {"cpu": 1 << 20, "cuda": 1 << 13}
_CHAINS = 8  # of arithmetic() in probes.cu
_LEAST_BUDGET = 0.1  # seconds; with less there is no time for ten rounds


@dataclass(frozen=True)
class Level:
    """A place where data lies: how fast it can be read from there, and how long one load takes."""

    name: str
    working_set: int | None  # bytes that were read again and again
    bandwidth: float  # bytes a second, all threads together
    latency: float | None = None  # seconds


@dataclass(frozen=True)
class Probes:
    """What one machine was measured to do."""

    device: str
    arithmetic: float  # float32 operations a second in registers; a multiply-add is two
    levels: tuple[Level, ...]  # the nearest first, memory last
    copy: float  # bytes a second, read and written, of a copy in memory
    call: float  # seconds of a call that has nothing to compute

    @property
    def memory(self) -> Level:
        return self.levels[-1]

    @property
    def operations_per_float(self) -> float:
        """Operations that fit in the time that one float takes to be copied: read and written."""
        return self.arithmetic * 8 / self.copy


def can_compile(device: str) -> bool:
    """Whether the probes, and the rungs of the ladder, can be built for this device."""
    return build.available("cuda") if device == "cuda" else cpp.find() is not None


def measure(device: str, quick: bool = False) -> Probes:
    """A few seconds; `quick` less than one. Without a compiler by PyTorch's own operations."""
    size = (1 << 22 if quick else 1 << 24) * (4 if device == "cuda" else 1)
    budget = 0.05 if quick else 0.3
    with torch.no_grad():
        if not can_compile(device):
            arithmetic, levels = _by_torch(device, size, budget)
        elif device == "cuda":
            arithmetic, levels = _cuda_arithmetic(budget), _cuda_levels(size, budget)
        else:
            arithmetic, levels = _cpu_arithmetic(budget), _cpu_levels(size, budget)
        copy = _copy(device, size, budget)
        call = _call(device, budget)
    return Probes(device, arithmetic, tuple(levels), copy, call)


# ---- any device


def _time(call: Callable[[], object], device: str, clock: Clock, budget: float) -> Timing:
    rounds = 3 if budget < _LEAST_BUDGET else 10
    ways = {"": lambda _: call()}
    return compare(ways, device=device, clock=clock, budget=budget, rounds=rounds)[""]


def _copy(device: str, floats: int, budget: float) -> float:
    source = torch.ones(floats, device=device)
    target = torch.zeros_like(source)
    taken = _time(lambda: target.copy_(source), device, "cold", budget)
    return (source.nbytes + target.nbytes) / taken.low


def _call(device: str, budget: float) -> float:
    one = torch.ones(1, device=device)
    return _time(lambda: one.mul_(1.0), device, "wall", budget).median


def _sink(device: str) -> Tensor:
    return torch.zeros(max(torch.get_num_threads(), 64), device=device)


def circle(places: int, apart: int, device: str) -> Tensor:
    """A chain through `places` places, `apart` bytes from each other, in random order.

    Each place holds how many bytes from the beginning the next one is; the last leads to the first.
    """
    order = torch.randperm(places)
    memory = torch.zeros(places, apart // 8, dtype=torch.int64)
    memory[order, 0] = order.roll(-1) * apart
    return memory.view(torch.float32).flatten().to(device)


def _latency(device: str, size: int, apart: int, clock: Clock, budget: float) -> float:
    memory, sink = circle(size // apart, apart, device), _sink(device)
    # Cold, no place may be met twice.
    steps = min(size // apart, 10_000) if clock == "cold" else 50_000

    def chase() -> None:
        launch.launch(_FILE, "chase", Grid.one(), read(memory), write(sink), steps)

    return _time(chase, device, clock, budget).median / steps


def _bandwidth(
    device: str, size: int, total: int, clock: Clock, budget: float, grid: Grid
) -> float:
    """Bytes a second of reading `size` bytes until it is `total`."""
    x, sink = torch.ones(size // 4, device=device), _sink(device)
    times = max(1, total // size)

    def reading() -> None:
        launch.launch(_FILE, "bandwidth", grid, read(x, times), write(sink), x.numel(), times)

    return times * x.nbytes / _time(reading, device, clock, budget).low


def work(x: Tensor, out: Tensor, times: int) -> None:
    """Copies x to out, with so many multiply-adds on each float on its way.

    Of floats that do not fill a whole vector the last are left out.
    """
    launch.launch(_FILE, "work", Grid.fill(x), read(x), write(out), x.numel(), times)


# ---- the CPU


def _cpu_arithmetic(budget: float) -> float:
    sink = _sink("cpu")
    rounds = _ROUNDS["cpu"]

    def run() -> None:
        launch.launch(_FILE, "arithmetic", Grid.cover(1), write(sink), rounds)

    floats = _floats_per_round() * rounds * torch.get_num_threads()
    return 2 * floats / _time(run, "cpu", "warm", budget).low


def _floats_per_round() -> int:
    function = launch.cpu_library(_FILE).floats_per_round
    function.restype = ctypes.c_longlong
    return int(function())


def _cpu_levels(size: int, budget: float) -> list[Level]:
    threads = torch.get_num_threads()
    grid = Grid.cover(1)
    levels = []
    for name, each in _cpu_caches():
        held = each // 2  # of one core's; half, because others use it too
        rate = _bandwidth("cpu", held * threads, 16 * size, "warm", budget, grid)
        levels.append(Level(name, held, rate, _latency("cpu", held, 64, "warm", budget)))
    rate = _bandwidth("cpu", 4 * size, 4 * size, "cold", budget, grid)
    latency = _latency("cpu", 4 * size, 64, "cold", budget)
    return [*levels, Level("memory", 4 * size, rate, latency)]


@functools.cache
def _cpu_caches(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[tuple[str, int]]:
    """(name, bytes for one core), the nearest first; typical sizes where the system does not tell.

    Of a large L3 the probe takes 16 times the L2: it is shared with everyone on the machine.
    """
    sizes: dict[str, int] = {}
    for index in sorted(root.glob("index*")):
        try:
            level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        except OSError:
            continue
        told = re.fullmatch(r"(\d+)([KMG]?)", size)
        if told and kind in ("Data", "Unified"):
            unit = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[told[2]]
            sizes[f"L{level} cache"] = int(told[1]) * unit
    if not sizes:
        return [("first cache", 1 << 15), ("second cache", 1 << 18)]
    if "L3 cache" in sizes and "L2 cache" in sizes:
        shared = sizes["L3 cache"] // max(torch.get_num_threads(), 1)
        sizes["L3 cache"] = min(shared, 16 * sizes["L2 cache"])
        if sizes["L3 cache"] <= 2 * sizes["L2 cache"]:  # a core's share of it is hardly larger
            del sizes["L3 cache"]
    return sorted(sizes.items())


# ---- the GPU


def _cuda_arithmetic(budget: float) -> float:
    sink = _sink("cuda")
    grid, rounds = Grid.fill(sink), _ROUNDS["cuda"]

    def run() -> None:
        launch.launch(_FILE, "arithmetic", grid, write(sink), rounds)

    threads = grid.blocks[0] * grid.threads[0]
    return 2 * _CHAINS * rounds * threads / _time(run, "cuda", "warm", budget).low


def _cuda_levels(floats: int, budget: float) -> list[Level]:
    sink = _sink("cuda")
    grid, rounds = Grid.fill(sink), _ROUNDS["cuda"]

    def shared() -> None:
        launch.launch(_FILE, "shared_memory", grid, write(sink), rounds)

    moved = 16 * rounds * grid.blocks[0] * grid.threads[0]
    levels = [Level("shared memory", None, moved / _time(shared, "cuda", "warm", budget).low)]
    held = timing.cache_bytes("cuda") // 4  # an L2 may be in two halves, each with a copy
    memory = max(4 * floats, 8 * timing.cache_bytes("cuda"))
    places: tuple[tuple[str, int, int, Clock], ...] = (
        ("L2 cache", held, 16 * held, "warm"),
        ("memory", memory, memory, "cold"),
    )
    for name, size, total, clock in places:
        rate = _bandwidth("cuda", size, total, clock, budget, grid)
        levels.append(Level(name, size, rate, _latency("cuda", size, 128, clock, budget)))
    return levels


# ---- without a compiler


def _by_torch(device: str, floats: int, budget: float) -> tuple[float, list[Level]]:
    """Matrix products for arithmetic, sums for reading: PyTorch's calls are part of the times."""
    side = 512
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    multiplied = _time(lambda: torch.mm(a, b), device, "warm", budget)
    arithmetic = 2 * side**3 / multiplied.low
    levels = []
    places: tuple[tuple[str, int, Clock], ...] = (
        ("cache", 1 << 18, "warm"),
        ("memory", 4 * floats, "cold"),
    )
    for name, size, clock in places:
        x = torch.ones(size // 4, device=device)
        levels.append(Level(name, size, x.nbytes / _time(x.sum, device, clock, budget).low))
    return arithmetic, levels
