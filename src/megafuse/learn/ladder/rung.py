"""What a rung is: a function over tensors that knows its source and counts its bytes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from megafuse.bench.timing import cache_bytes
from megafuse.learn.ladder import launch
from megafuse.learn.ledger import Ledger, count
from megafuse.ops import OPS, Op
from megafuse.registry import activate
from megafuse.runtime import build


@dataclass(frozen=True)
class Rung:
    """One step: what changed from the one below, and the function that runs it."""

    name: str
    change: str  # on the GPU
    change_on_cpu: str  # where `on_cpu` is false: why the idea does not apply there
    run: Callable[..., Tensor]
    file: str | None  # of its source, in kernels/; None for the shipped op
    on_cpu: bool = field(default=True, kw_only=True)
    on_gpu: bool = field(default=True, kw_only=True)
    # What its source makes it wait for besides its bytes, known without a measurement.
    waits: str = field(default="", kw_only=True)
    waits_on_cpu: str = field(default="", kw_only=True)

    def changed(self, device: str) -> str:
        return self.change if device == "cuda" else self.change_on_cpu

    def waits_for(self, device: str) -> str:
        return self.waits if device == "cuda" else self.waits_on_cpu

    def ledger(self, *arguments: Any) -> Ledger:
        """Launches and bytes for these arguments, counted without running anything."""
        with launch.noting() as notes:
            self.run(*arguments)
        held = cache_bytes(next(a.device for a in arguments if isinstance(a, Tensor)))
        accesses = [access for _, accesses in notes for access in accesses]
        return Ledger(
            tuple(entry for entry, _ in notes),
            sum(access.nbytes for access in accesses),
            sum(access.from_memory(held) for access in accesses),
        )


@dataclass(frozen=True)
class Shipped(Rung):
    """The last rung: the op of the library, called as its users call it."""

    op: Op

    def ledger(self, *arguments: Any) -> Ledger:
        """The least bytes that the op must move, by its own declaration; where it runs unfused,
        those of its reference, counted as it runs."""
        device = next(a.device.type for a in arguments if isinstance(a, Tensor))
        if not (activate() and build.available(device)):
            return count(lambda: self.run(*arguments))
        call = inspect.signature(self.op.reference).bind(*arguments)
        call.apply_defaults()
        return Ledger((self.op.name,), self.op.cost(*call.args).bytes_moved)


@dataclass(frozen=True)
class Ladder:
    """The rungs to one op, from the naive one up."""

    name: str
    rungs: tuple[Rung, ...]

    @property
    def op(self) -> Op:
        return OPS[self.name]

    def on(self, device: str) -> tuple[Rung, ...]:
        """The rungs whose idea applies there."""
        return tuple(r for r in self.rungs if (r.on_gpu if device == "cuda" else r.on_cpu))

    def exact(self, *arguments: Any) -> Tensor:
        """The op's reference in float64."""
        doubles = [a.double() if isinstance(a, Tensor) else a for a in arguments]
        result: Tensor = self.op.reference(*doubles)
        return result


def shipped(name: str, change: str) -> Shipped:
    op = OPS[name]
    return Shipped(f"megafuse.{name}", change, change, op.fused, None, op)
