"""How long a function's first call takes, when nothing of it was ever compiled.

Both caches, ours and Inductor's, are empty folders for that call, but for what comes with the host
runtime, which is loaded: the compiler's flags are known, and the headers parsed. Then the batch
size changes: a function that is compiled for one shape only is compiled again.

torch.compile's is timed without a backward, and not where it tunes: seconds for each row that say
the same again.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from megafuse.bench import honesty
from megafuse.bench.contenders import Function
from megafuse.bench.job import Job
from megafuse.bench.result import Entry, Row
from megafuse.runtime import cache, loader, precompiled


def measure(job: Job, function: Function, entry: Entry) -> None:
    """Fills in what the entry has to say of first calls; a failure is its error."""
    assert job.draw_another is not None
    theirs = entry.name.startswith("compile")
    if entry.name == "eager":
        return  # it compiles nothing
    if theirs and (entry.name != "compile" or job.mode != "forward"):
        return
    loader.load()
    step = job.step(function)
    first, second = job.arguments(), job.with_gradients(job.draw_another())
    try:
        with _empty_caches():
            if job.device == "cpu":
                precompiled.make_ahead()
            entry.first_call = _seconds(lambda: step(*first), job.device)
            compiled = _compiled()
            if theirs:
                return  # made for one shape (contenders.compiled), as its own row says
            entry.another_shape = _seconds(lambda: step(*second), job.device)
            entry.compiled_again = _compiled() != compiled
    except Exception as error:  # a compiler can fail in any way
        entry.error = honesty.told(error)


def _seconds(call: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _compiled() -> int:
    """How many kernels the cache has."""
    return cache.size()[0]


@contextmanager
def _empty_caches() -> Iterator[None]:
    from torch._inductor.utils import fresh_cache

    before = os.environ.get("MEGAFUSE_CACHE")
    # A compiled library may still be open when the folder goes: Windows would refuse.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, fresh_cache():
        os.environ["MEGAFUSE_CACHE"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["MEGAFUSE_CACHE"]
            else:
                os.environ["MEGAFUSE_CACHE"] = before


def told(rows: Sequence[Row]) -> list[str]:
    """fuse, first call: median 1.2 s, at most 2.1 s (rope_half); another batch size …"""
    lines = []
    for name in dict.fromkeys(e.name for row in rows for e in row.entries):
        found = [(e, row.op) for row in rows if (e := row.entry(name)) and e.first_call]
        taken = [(e.first_call or 0.0, op) for e, op in found]
        if not taken:
            continue
        slowest, op = max(taken)
        median = statistics.median(seconds for seconds, _ in taken)
        line = f"{name}, first call: median {median:.1f} s, at most {slowest:.1f} s ({op})"
        again = [op for e, op in found if e.compiled_again]
        if any(e.compiled_again is not None for e, _ in found):
            line += "; another batch size compiled " + (", ".join(again) or "nothing")
        lines.append(line)
    return lines
