"""What a finder gets: the record, the machine, who reads and writes what, and a stopwatch."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import Operation, Record, Touched, Where

# Seconds of the library's product of these sizes: batch, rows, inner, columns, dtype.
ProductTimer = Callable[[int, int, int, int, str], float | None]


@dataclass
class Case:
    """`product_seconds` measures live; without it (a record from a file) the roof is taken."""

    record: Record
    machine: Machine
    product_seconds: ProductTimer | None = None

    @property
    def on_gpu(self) -> bool:
        return self.record.device == "cuda"

    @functools.cached_property
    def readers(self) -> dict[int, list[Operation]]:
        """By value: the operations that read it. A view's own readers read the same value."""
        found: dict[int, list[Operation]] = defaultdict(list)
        for op in self.record.operations:
            if op.kind != "view":
                for value in {t.value for t in op.reads}:
                    found[value].append(op)
        return found

    @functools.cached_property
    def writer(self) -> dict[int, Operation]:
        """By value: the operation that made it."""
        return {t.value: op for op in self.record.operations for t in op.writes}

    @functools.cached_property
    def gap(self) -> float:
        """Seconds on the host between two operations of a CPU: Python, and PyTorch's dispatch."""
        record = self.record
        outside = sum(call.seconds for call in record.host_calls)
        return max(0.0, record.seconds - record.busy - outside) / max(1, len(record.operations))

    @property
    def host_per_operation(self) -> float:
        return self.record.host / max(1, len(self.record.operations))

    def gain(self, saved: float, fewer: float = 0) -> float:
        """Seconds of the call that are saved with so many of its operations' seconds, and so many
        operations less. Where a GPU waits for its host, only the host's time counts."""
        record = self.record
        if not self.on_gpu:
            return max(0.0, saved + fewer * self.gap)
        if any(op.waits for op in record.operations):  # they take turns: all that is saved counts
            return max(0.0, min(record.seconds, saved + fewer * self.machine.call))
        host = record.host - fewer * self.host_per_operation
        return max(0.0, record.seconds - max(host, record.busy - saved))

    def memory_seconds(self, moved: float) -> float:
        """Of a pass over so many bytes, at the roof."""
        rate = self.machine.cached if moved <= self.machine.cache_bytes // 2 else self.machine.copy
        return moved / rate

    def tiny(self, op: Operation) -> bool:
        """Whether its call takes longer than its work."""
        least = self.machine.launch or self.machine.call if self.on_gpu else self.machine.call
        work = self.memory_seconds(op.bytes_moved)
        rate = self.machine.flop_rate(dtype(op))
        return max(work, op.flops / rate if rate else 0.0) < least

    def share(self, seconds: float) -> float:
        return seconds / self.record.seconds if self.record.seconds else 0.0


def dtype(op: Operation) -> str:
    """Of what it computes with: the first floating tensor that it reads."""
    floats = (t.dtype for t in (*op.reads, *op.writes) if is_float(t))
    return next(floats, "float32")


def is_float(t: Touched) -> bool:
    return t.dtype.startswith(("float", "bfloat"))


def apart(tensors: Iterable[Touched]) -> int:
    """Bytes of them, each part of a memory once: two slices of one tensor are two parts."""
    parts: dict[tuple[int, int], int] = {}
    for t in tensors:
        place = t.value, t.offset
        parts[place] = max(t.bytes, parts.get(place, 0))
    return sum(parts.values())


def total(operations: Iterable[Operation]) -> float:
    return sum(op.seconds for op in operations)


def indices(operations: Iterable[Operation]) -> list[int]:
    return [op.index for op in operations]


def main_line(operations: Sequence[Operation]) -> tuple[Where, list[Where]]:
    """The line that takes the most time, and the others."""
    times: dict[Where, float] = defaultdict(float)
    for op in operations:
        times[op.where] += op.seconds
    lines = sorted(times, key=lambda w: -times[w])
    known = [w for w in lines if w.file] or lines or [Where()]
    return known[0], sorted(known[1:], key=lambda w: (w.file, w.line))


def largest(tensors: Sequence[Touched]) -> Touched | None:
    return max(tensors, key=lambda t: t.bytes, default=None)


def shape(t: Touched) -> str:
    """512×768"""
    return "×".join(map(str, t.shape)) or "one number"
