"""What a sweep does not measure: cases that would take too much memory, or too long."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from megafuse.bench.job import Job
from megafuse.bench.sweep.case import Case

# A kernel read or wrote where it may not: no call on the device works any more in this process.
LOST: type[Exception] = getattr(torch, "AcceleratorError", torch.cuda.CudaError)

_OF_FREE = 0.25  # of the memory that is free
_TIMES = 3  # the bytes moved: what arguments, results and eager's intermediates take together
_LONGEST = 0.5  # seconds of one call


def too_much(job: Job) -> str | None:
    """Says so where the case would need too much memory, or its products too much time."""
    if job.work is None:
        return None
    needed, free = _TIMES * job.work.bytes_moved, free_bytes(job.device)
    if free is not None and needed > _OF_FREE * free:
        return f"would need {needed / 1e9:.1f} GB of the {free / 1e9:.1f} GB that are free"
    if job.multiplies and job.device == "cpu":
        expected = job.work.flops / _product_rate(job.dtype)
        if expected > _LONGEST:
            return f"a call would take {expected:.1f} s"
    return None


def kills_torch(case: Case, device: str) -> str | None:
    """Says so where eager would take the device with it: torch 2.11's flash attention of one token
    reads 16 bytes at a time, whatever the distance of heads is (compute-sanitizer, H200)."""
    one_token = case.op == "attention" and case.shape[2] == 1
    if device == "cuda" and one_token and case.layout != "plain" and case.dtype != "float32":
        return "torch's attention reads misaligned addresses"
    return None


def too_long(job: Job, args: Sequence[Any]) -> str | None:
    """Says so where a call of eager takes too long; it is called once or twice for that."""
    step = job.step(job.reference)
    took = _LONGEST
    for _ in range(2):  # the first may have to set something up
        begun = time.perf_counter()
        step(*args)
        if job.device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - begun
        if took < _LONGEST:
            return None
    return f"a call takes {took:.1f} s"


def free_bytes(device: str) -> int | None:
    """Memory that can be had; None where the system does not tell."""
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(free + kept)
    try:
        with open("/proc/meminfo") as told:
            fields = dict(line.split(":") for line in told)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return None


@functools.cache
def _product_rate(dtype: str) -> float:
    """FLOP a second of a small product: without 16-bit instructions some take 100 times as long."""
    side = 128
    a = torch.ones(side, side, dtype=getattr(torch, dtype))
    best = float("inf")
    with as_in_a_new_process():
        for _ in range(3):
            begun = time.perf_counter()
            torch.mm(a, a)
            best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best


@contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """With oneDNN as it was: after one failed 16-bit product torch does without it from then on,
    and eager's float32 would depend on which cases came before."""
    onednn: Any = torch.backends.mkldnn
    was = onednn.enabled
    try:
        yield
    finally:
        onednn.enabled = was
