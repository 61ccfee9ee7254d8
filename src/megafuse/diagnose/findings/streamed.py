"""streamed working set: several operations in turn go through more than the cache holds, where a
part of the batch at a time would stay in it."""

from __future__ import annotations

from collections.abc import Iterator

from megafuse.compiler.explained import size
from megafuse.diagnose.finding import Evidence, Finding
from megafuse.diagnose.findings.case import Case, indices, main_line, total
from megafuse.diagnose.record import Operation

NAME = "streamed working set"
_LEAST = 3  # operations in a row
_FASTER = 2.0  # times that the cache is faster than memory, at least
_KINDS = ("pointwise", "reduction", "copy", "index", "other")


def find(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.cached < _FASTER * machine.copy:
        return
    for chain in _rows(case):
        moved = sum(op.bytes_moved for op in chain)
        least = moved / machine.cached * 1.2
        where, lines = main_line(chain)
        yield Finding(
            NAME,
            f"{len(chain)} operations in turn stream {size(moved)} through a cache of "
            f"{size(machine.cache_bytes)}",
            "Go through the batch in pieces that fit the cache, all operations on one piece before "
            "the next.",
            where,
            total(chain),
            case.gain(max(0.0, total(chain) - least)) / 2,
            "perhaps",
            [
                Evidence("bytes moved", float(moved), "B"),
                Evidence("bytes of the cache", float(machine.cache_bytes), "B"),
                Evidence("rate of the cache", machine.cached, "B/s"),
                Evidence("rate of memory", machine.copy, "B/s"),
            ],
            indices(chain),
            "half of what the cache's rate would save",
            lines,
        )


def _rows(case: Case) -> Iterator[list[Operation]]:
    """Operations in a row that each read what the one before wrote, larger than half the cache."""
    chain: list[Operation] = []
    for op in case.record.operations:
        if op.kind == "view":
            continue
        written = {t.value for t in chain[-1].writes} if chain else set()
        large = op.bytes_moved > case.machine.cache_bytes // 2 and op.kind in _KINDS
        if large and (not chain or any(t.value in written for t in op.reads)):
            chain.append(op)
            continue
        if len(chain) >= _LEAST:
            yield chain
        chain = [op] if large else []
    if len(chain) >= _LEAST:
        yield chain
