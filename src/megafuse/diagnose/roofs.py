"""The machine's roofs: bench's, and what an eager call costs. Measured once, and kept; again, a few
times, while other programs took part of the CPU at each measurement."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from megafuse.bench import machine as about
from megafuse.bench import roof
from megafuse.bench.timing import cache_bytes, compare
from megafuse.diagnose.machine import Machine
from megafuse.runtime import cache, progress

if TYPE_CHECKING:
    from megafuse.diagnose.record import Record

_FILE = "diagnose_roofs.json"
_BUDGET = 0.25
_LARGE = 1 << 26  # bytes of a tensor that a call allocates anew each time, larger than most caches
_OBSERVED = 0.97  # a share of the roof that an operation is put at if it was above it


_OTHERS = 0.1  # of the CPU's time: then others' work is in what was measured
_TRIES = 4


def machine(device: str, again: bool = False) -> Machine:
    """From the cache, or measured now, which takes some seconds."""
    told = json.dumps(about.about(device), sort_keys=True)
    key = cache.key("diagnose 3", told, torch.__version__)
    before: list[Machine] = []

    def write(path: Path) -> None:
        _measured.add(device)
        with _Others() as others:
            now = measure(device)
        if others.share > _OTHERS:
            now = replace(now, disturbed=1)
        path.write_text(json.dumps(asdict(best([*before, now]))))

    def kept() -> Machine:
        return Machine(**json.loads(cache.get(key, _FILE, write).read_text()))

    if not again:
        found = kept()
        if not 0 < found.disturbed < _TRIES or device in _measured:
            return found
        before.append(found)
    (cache.directory() / key[:2] / key / _FILE).unlink(missing_ok=True)
    return kept()


_measured: set[str] = set()  # by this process: other work rarely ends from one call to the next


def best(found: Sequence[Machine]) -> Machine:
    """The highest roof of each kind: other work only lowers them."""
    *_, last = found
    if len(found) == 1:
        return last
    rates = {name: max(getattr(m, name) for m in found) for name in ("copy", "read", "cached")}
    launches = [m.launch for m in found if m.launch is not None]
    return replace(
        last,
        **rates,
        fresh=max(m.fresh for m in found),
        call=min(m.call for m in found),
        launch=min(launches) if launches else None,
        gemm={d: max(m.gemm.get(d, 0.0) for m in found) for m in found for d in m.gemm},
        disturbed=0 if not last.disturbed else sum(m.disturbed for m in found),
    )


class _Others:
    """The share of the CPUs' time that other processes had; 0 where the system does not say."""

    share = 0.0

    def __enter__(self) -> _Others:
        self._start, self._wall, self._own = _busy(), time.monotonic(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        busy, wall = _busy() - self._start, time.monotonic() - self._wall
        others = busy - (time.process_time() - self._own)
        self.share = max(0.0, others / (wall * (os.cpu_count() or 1)))


def _busy() -> float:
    """Seconds that all CPUs together were not idle, on Linux."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    spent = [int(n) for n in fields[:8]]
    return (sum(spent) - spent[3] - spent[4]) / float(os.sysconf("SC_CLK_TCK"))


def measure(device: str) -> Machine:
    """Some seconds, which are announced."""
    progress.logger.info("measuring what this machine can do at best (once, some seconds)")
    known = roof.roofs(device)
    told = about.about(device)
    threads = torch.get_num_threads()
    held = cache_bytes(device)
    with torch.no_grad():
        return Machine(
            str(told.get("gpu") or f"{told['cpu']}, {threads} threads"),
            device,
            known.copy,
            known.read,
            max(_cached(device, held), known.copy),
            held,
            _call(device),
            known.launch,
            known.gemm,
            threads,
            _fresh(device),
            {"torch": torch.__version__},
        )


def _cached(device: str, held: int) -> float:
    """Bytes a second of an addition whose tensors stay in the cache."""
    count = max(1024, min(held // 16, 1 << 22) // 4)
    x, out = torch.ones(count, device=device), torch.empty(count, device=device)
    return 2 * x.nbytes / _best(lambda i: torch.add(x, 1.0, out=out), device, "warm")


def _fresh(device: str) -> float:
    x = torch.ones(_LARGE // 4, device=device)
    return 2 * x.nbytes / _best(lambda i: x + 1.0, device, "warm")


def _call(device: str) -> float:
    """Seconds from one tiny operation to the next in a loop in Python."""
    x = torch.ones(4, device=device)
    (taken,) = compare(
        {"": lambda i: x + 1.0}, device=device, clock="host", budget=_BUDGET
    ).values()
    return taken.median


def _best(call, device, clock) -> float:  # type: ignore[no-untyped-def]
    (taken,) = compare({"": call}, device=device, clock=clock, budget=_BUDGET).values()
    return taken.low


def raised(machine: Machine, record: Record) -> Machine:
    """With roofs no lower than what the call itself reached: they may have been measured while
    something else ran, and nothing is better than its roof."""
    gemm = dict(machine.gemm)
    if "float64" in gemm:  # float32 is never slower
        gemm["float32"] = max(gemm.get("float32", 0.0), gemm["float64"])
    for op in record.operations:
        if op.kind == "product" and op.flops and op.seconds > 20e-6 and op.reads:
            dtype = op.reads[0].dtype
            gemm[dtype] = max(gemm.get(dtype, 0.0), _OBSERVED * op.flops / op.seconds)
    return replace(machine, gemm=gemm)
