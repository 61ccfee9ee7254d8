"""Callables that are compiled: what Dynamo says of them, and operations from the profiler alone.

A watch would keep Dynamo from running what it compiled, so such a call is only profiled. Bytes of
its kernels are not known then: only of library calls between them, from their inputs' shapes, and
the FLOPs of products and attention.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from megafuse.diagnose import kinds, timeline
from megafuse.diagnose.record import Operation, Touched, Where
from megafuse.diagnose.timeline import Event, Run

_SIZES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4}
_NAMES = {"float": "float32", "double": "float64", "c10::BFloat16": "bfloat16",
          "c10::Half": "float16", "long int": "int64", "int": "int32"}  # fmt: skip
COMPILED = "compiled.kernels"  # all of a region's own


class Seen:
    """What Dynamo has counted so far; nothing where it was never imported."""

    def __init__(self) -> None:
        counters = _counters()
        self.graphs = int(counters["stats"].get("unique_graphs", 0)) if counters else 0
        self.breaks = len(_reasons())

    def breaks_since(self) -> list[str]:
        """Reasons of the graph breaks from then until now; all of them where there were none: a
        callable that was compiled before has met its breaks already."""
        reasons = _reasons()
        return [_told(why) for why in reasons[self.breaks :] or reasons]


def _counters() -> Any:
    found = sys.modules.get("torch._dynamo.utils")
    return found.counters if found is not None else None


def _reasons() -> list[Any]:
    """What Dynamo noted of each break; the end of a function is none."""
    found = sys.modules.get("torch._dynamo.utils")
    noted = getattr(found, "graph_break_reasons", [])
    return [why for why in noted if getattr(why, "graph_break", True)]


def _told(why: Any) -> str:
    """graph_break.py:13: if mixed[0, 0].item() > 1e9:"""
    stack = getattr(why, "user_stack", None)
    reason = str(why.reason).strip().partition("\n")[0]
    if not stack:
        return reason
    frame = stack[-1]
    return f"{frame.filename}:{frame.lineno}: {reason}"


# ---- operations


def operations(runs: Sequence[Run]) -> list[Operation]:
    """Of the middle run: what lies in no other operation, compiled regions opened."""
    if not runs:
        return []
    run = sorted(runs, key=lambda r: r.seconds)[len(runs) // 2]
    found = [_operation(at, event) for at, event in enumerate(_leaves(run))]
    windows = [(op.host_start, op.host_start + op.host_seconds) for op in found]
    for launch in run.launches:
        when = launch.launched
        at = next(
            (i for i, (a, b) in enumerate(windows) if when is not None and a <= when < b), None
        )
        if at is not None:
            found[at].kernels.append(launch.kernel)
    for op in found:
        if run.launches:
            op.device_seconds = sum(k.seconds for k in op.kernels)
            op.device_start = min((k.start for k in op.kernels), default=None)
    return found


def _leaves(run: Run) -> list[Event]:
    """ATen calls at the top of each compiled region, and the region itself for what is between."""
    wrappers = ("Torch-Compiled Region", "CompiledFunction", "## Call", "TorchDynamo", "Pregraph")
    inner = [e for e in run.events if not e.name.startswith(wrappers) and "::" in e.name]
    top = timeline.outermost(Run(run.seconds, inner))
    regions = [e for e in run.events if e.name.startswith("Torch-Compiled Region")]
    name = COMPILED.replace(".", "::")
    for region in timeline.outermost(Run(run.seconds, regions)):
        inside = sum(e.end - e.start for e in top if region.start <= e.start < region.end)
        own = region.end - region.start - inside
        if own > 0:
            top.append(Event(name, region.start, region.start + own, region.thread))
    return sorted(top, key=lambda e: e.start)


def _operation(at: int, event: Event) -> Operation:
    namespace, _, name = event.name.partition("::")
    kind = "other" if namespace == "compiled" else kinds.of_name(namespace, name)
    reads = _reads(event)
    return Operation(
        at, f"{namespace}.{name}", kind, "forward", Where(), event.start, event.end - event.start,
        reads=reads, bytes_moved=sum(t.bytes for t in reads), flops=_flops(name, kind, reads),
    )  # fmt: skip


def _flops(name: str, kind: str, reads: Sequence[Touched]) -> int:
    """Of a product, or of attention: the tensors come as the call has them, the result last where
    the caller gives its memory."""
    shapes = [t.shape for t in reads]
    if kind == "attention" and len(shapes) > 2 and len(shapes[1]) > 1:
        return 4 * math.prod(shapes[0]) * shapes[1][-2]
    if kind != "product":
        return 0
    at = 1 if name in ("addmm", "baddbmm", "_addmm_activation") else 0
    if len(shapes) < at + 2:
        return 0
    left, right = shapes[at], shapes[at + 1]
    if name in ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation") and len(right) > 1:
        return 2 * math.prod(left) * right[-1]
    if "linear" in name and len(right) == 2:
        return 2 * math.prod(left) * right[0]
    return 0


def _reads(event: Event) -> list[Touched]:
    found = []
    for shape, dtype in zip(event.shapes or [], event.dtypes or [], strict=False):
        if shape and dtype in _SIZES and all(isinstance(n, int) for n in shape):
            size = math.prod(shape) * _SIZES[dtype]
            found.append(Touched(-1, -1, tuple(shape), (), _NAMES[dtype], "", size))
    return found
