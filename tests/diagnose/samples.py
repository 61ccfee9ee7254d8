"""Records of machines that are not here: numbers fed to findings, and to what shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import Kernel, Operation, Record, Touched, Where

GPU = Machine(
    "NVIDIA H200",
    "cuda",
    copy=4.0e12,
    read=4.3e12,
    cached=9.0e12,
    cache_bytes=60 << 20,
    fresh=4.0e12,
    call=4e-6,
    launch=2.2e-6,
    gemm={"float32": 50e12, "bfloat16": 750e12, "float16": 750e12, "float64": 60e12},
    threads=16,
)
FAST_CPU = Machine(
    "a server with 64 threads",
    "cpu",
    copy=2.5e11,
    read=2.8e11,
    cached=1.5e12,
    cache_bytes=256 << 20,
    fresh=1.2e11,
    call=1.5e-6,
    gemm={"float32": 4e12, "bfloat16": 12e12, "float64": 2e12},
    threads=64,
)
SLOW_CPU = Machine(
    "a laptop with 2 threads",
    "cpu",
    copy=1.2e10,
    read=1.0e10,
    cached=4.0e10,
    cache_bytes=4 << 20,
    fresh=0.6e10,
    call=3e-6,
    gemm={"float32": 6e10, "float64": 3e10},
    threads=2,
)
MACHINES = [GPU, FAST_CPU, SLOW_CPU]
SIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1}


def tensor(
    value: int,
    *shape: int,
    dtype: str = "float32",
    device: str = "cpu",
    outside: bool = False,
    strides: Sequence[int] | None = None,
    storage: int | None = None,
    aligned: bool = True,
    offset: int = 0,
) -> Touched:
    """A dense one, unless strides are given."""
    count, dense = 1, []
    for size in reversed(shape):
        dense.append(count)
        count *= size
    return Touched(
        value,
        value if storage is None else storage,
        tuple(shape),
        tuple(strides if strides is not None else reversed(dense)),
        dtype,
        device,
        count * SIZES[dtype],
        aligned,
        outside,
        offset,
    )


class Calls:
    """Builds a record operation by operation; each starts when the one before has ended."""

    def __init__(self, machine: Machine, mode: str = "forward") -> None:
        self.machine, self.mode, self.now = machine, mode, 0.0
        self.operations: list[Operation] = []
        self.extra: dict[str, Any] = {}

    def add(
        self,
        name: str,
        kind: str,
        seconds: float,
        reads: Sequence[Touched] = (),
        writes: Sequence[Touched] = (),
        line: int = 1,
        gap: float = 0.0,
        **more: Any,
    ) -> Operation:
        gpu = self.machine.device == "cuda"
        self.now += gap
        op = Operation(
            len(self.operations),
            name,
            kind,
            more.pop("phase", "forward"),
            Where("model.py", line, "forward", f"line {line}"),
            self.now,
            self.machine.call if gpu else seconds,
            self.now if gpu else None,
            seconds if gpu else None,
            [Kernel(f"{name}_kernel", self.now, seconds)] if gpu and kind != "view" else [],
            list(reads),
            list(writes),
            more.pop("bytes_moved", sum({t.value: t.bytes for t in (*reads, *writes)}.values())),
            **more,
        )
        self.now += seconds
        self.operations.append(op)
        return op

    def record(self, seconds: float | None = None, noise: float = 0.01, **more: Any) -> Record:
        total = self.now if seconds is None else seconds
        busy = sum(op.seconds for op in self.operations)
        gpu = self.machine.device == "cuda"
        launching = min(total, len(self.operations) * self.machine.call)
        return Record(
            "sample",
            self.machine.device,
            self.mode,
            total,
            total * (1 - noise / 2),
            total * (1 + noise / 2),
            20,
            total * 3,
            self.operations,
            busy=more.pop("busy", busy),
            host=more.pop("host", launching if gpu else total),
            **more,
        )
