"""The findings: each file knows one reason why a call is slow, and looks for it in a record.

`FINDERS` are in the order in which they claim operations: what explains more comes first, so that
no second's time is counted twice. They are shown by what they would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megafuse.diagnose.finding import Finding
from megafuse.diagnose.findings import (
    allocator,
    attention,
    casts,
    compilation,
    copies,
    float32,
    fusable,
    launches,
    loader,
    loop,
    mask,
    optimizer,
    outside,
    product,
    repeated,
    round_trip,
    streamed,
    strided,
    synchronisation,
    tiny_batch,
    unaligned,
    zeroed,
)
from megafuse.diagnose.findings.case import Case

Finder = Callable[[Case], Iterator[Finding]]

FINDERS: tuple[Finder, ...] = (
    loader.find,
    outside.find,
    compilation.find,
    product.find,
    attention.find,
    casts.find,
    loop.find,
    repeated.find,
    optimizer.find,
    zeroed.find,
    round_trip.find,
    copies.find,
    strided.find,
    mask.find,
    synchronisation.find,
    unaligned.find,
    float32.find,
    tiny_batch.find,
    launches.find,
    fusable.find,
    streamed.find,
    allocator.find,
)

# Of a compiled call only the profiler's events are known, and no tensors.
ON_COMPILED: tuple[Finder, ...] = (
    loader.find,
    compilation.find,
    synchronisation.find,
    allocator.find,
)

__all__ = ["FINDERS", "ON_COMPILED", "Case", "Finder"]
