"""A call as PyTorch's dispatcher sees it: every ATen call with its tensors and the user's line.

It runs beneath autograd, so the backward's operations come by too, each in the node of the forward
operation it belongs to: nodes are numbered when they are made, and the line is noted then.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from megafuse.compiler import Fused
from megafuse.diagnose import frames, kinds
from megafuse.diagnose.flops import flops
from megafuse.diagnose.keep import Keep
from megafuse.diagnose.record import Operation, Touched, Where
from megafuse.diagnose.replay import Place, Slot, Step, Tape
from megafuse.diagnose.tensors import Numbered

_NEVER = 1 << 63  # the number of a node that adds to a gradient: it belongs to no operation
_MOST_TEXT = 120
# The profiler's own, and what autograd does only while somebody looks on.
_UNNOTED = (
    "profiler._record_function_enter_new.default",
    "profiler._record_function_exit._RecordFunction",
    "aten.detach.default",
    "aten.detach_.default",
)


class Watch(TorchDispatchMode):
    """Notes operations. `names` are the profiler's for them, in the same order."""

    def __init__(self, until: CodeType | None, keep: Keep | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.names: list[str] = []
        self.begun = time.perf_counter()
        self._numbered = Numbered()
        self.lines: set[tuple[str, int]] = set()  # that operations were called from
        self.tape = Tape()
        self._allocated = 0  # by the operation that is being noted
        self._lines: dict[int, Where] = {}  # of a node, where its operation was called
        self._until, self._keep = until, keep
        self._backward_from: Where | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is traced here, and the wrapper would import Dynamo

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else Dynamo would not compile a part that is compiled, nor ever again

    def touched(self, t: Tensor) -> Touched:
        return self._numbered.touched(t)

    def opaque(self, name: str, call: Callable[[], Any], given: Any) -> Any:
        """A call that would run other operations under a watch: it is one operation, unwatched."""
        where, phase = self._line(sys._getframe().f_back)
        reads = [self.touched(t) for t in tree_leaves(given) if isinstance(t, Tensor)]
        start = time.perf_counter()
        with _disable_current_modes():
            out = call()
        took = time.perf_counter() - start
        results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        allocated = sum(t.numel() * t.element_size() for t in results if self._numbered.made(t))
        writes = [self.touched(t) for t in results]
        self.names.append(name)
        self.tape.steps.append(None)
        self.operations.append(
            Operation(
                len(self.operations),
                f"megafuse.{name}",
                "other",
                phase,
                where,
                start - self.begun,
                took,
                reads=reads,
                writes=writes,
                bytes_moved=moved(name, "other", reads, writes),
                allocated=allocated,
            )
        )
        return out

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or str(func) in _UNNOTED:
            return func(*args, **kwargs)
        written = list(_written(func, args, kwargs))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        # None where autograd's own thread calls, which has no Python below: CUDA's backward.
        where, phase = self._line(sys._getframe().f_back)
        reads = [self._numbered.touched(t) for t in given if not _only_written(func, t, written)]
        if self._keep is not None:
            for t in written:
                if self._numbered.outside(t):
                    self._keep.before_write(t)
            for t in given:
                if t.requires_grad and t.is_leaf:
                    self._keep.leaf(t)
        noted = self._noted(args, kwargs)
        start = time.perf_counter()
        out = func(*args, **kwargs)
        took = time.perf_counter() - start
        self._tape(func, noted, out)
        self._note(func, args, kwargs, out, written, reads, where, phase, start, took)
        return out

    def _note(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        out: Any,
        written: list[Tensor],
        reads: list[Touched],
        where: Where,
        phase: str,
        start: float,
        took: float,
    ) -> None:
        kind = kinds.kind(func)
        results = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        for t in written:
            self._numbered.write(t)
        mine = {id(t) for t in written}
        writes = [self._numbered.touched(t) for t in written]
        if kind != "view":
            writes += [self._numbered.touched(t) for t in results if id(t) not in mine]
        _, _, short = str(func._schema.name).partition("::")
        self.names.append(short if func.namespace == "megafuse" else str(func._schema.name))
        self.operations.append(
            Operation(
                len(self.operations),
                str(func),
                kind,
                phase,
                where,
                start - self.begun,
                took,
                reads=reads,
                writes=writes,
                bytes_moved=moved(short, kind, reads, writes),
                flops=flops(func, kind, args, kwargs, out),
                allocated=self._allocated if kind != "view" else 0,
                autocast=_under_autocast(),
                numbers=_numbers(args, kwargs) if kind != "view" else "",
            )
        )

    def _noted(self, args: Any, kwargs: Any) -> Any:
        """The arguments with places for tensors; of those that were there, the tensor as well."""

        def place(t: Tensor) -> Slot:
            touched = self._numbered.touched(t)
            slot = Slot(Place.of(touched))
            if touched.outside:
                self.tape.there.setdefault(slot.place, t)
            return slot

        return tree_map_only(Tensor, place, (args, kwargs))

    def _tape(self, func: Any, noted: Any, out: Any) -> None:
        fresh = (t for t in tree_leaves(out) if isinstance(t, Tensor) and self._numbered.made(t))
        self._allocated = sum(t.numel() * t.element_size() for t in fresh)
        changes = bool(_writes_to(func))
        outs = [] if changes else [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        places = tuple(Place.of(self._numbered.touched(t)) for t in outs)
        args, kwargs = noted
        step = Step(func, args, kwargs, places, kinds.kind(func) == "view")
        self.tape.steps.append(None if changes else step)

    def _line(self, frame: Any) -> tuple[Where, str]:
        """The user's line and the phase; in a backward the line of the forward operation."""
        node = torch._C._current_autograd_node()
        self.lines.update(frames.stack(frame, self._until))
        if node is None:
            here = frames.where(frame, self._until)
            if torch.is_grad_enabled():
                self._lines[torch.autograd._get_sequence_nr() - 1] = here
            optimizing = _in_optimizer(frame)
            return here, "optimizer" if optimizing else "forward"
        number = node._sequence_nr()
        if 0 <= number < _NEVER and number in self._lines:
            return self._lines[number], "backward"
        return frames.where(frame, self._until), "backward"


@contextmanager
def fused_as_they_are(watch: Watch) -> Iterator[None]:
    """Functions of `megafuse.fuse` run their kernels, as one operation each: under a watch they
    would run what they were made from."""
    plain = Fused.__call__

    def call(self: Fused, *args: Any, **kwargs: Any) -> Any:
        name = str(getattr(self.function, "__name__", "function"))
        return watch.opaque(name, lambda: plain(self, *args, **kwargs), (args, kwargs))

    Fused.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        Fused.__call__ = plain  # type: ignore[method-assign]


# ---- what is written


@functools.lru_cache(maxsize=4096)
def _writes_to(func: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that are changed, by the schema; which does not say of a
    batch normalisation that it moves its averages."""
    hidden = ("running_mean", "running_var") if "batch_norm" in func._schema.name else ()
    return tuple(
        (i, a.name)
        for i, a in enumerate(func._schema.arguments)
        if (a.alias_info and a.alias_info.is_write) or a.name in hidden
    )


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for place, name in _writes_to(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield leaf


def _only_written(func: Any, t: Tensor, written: list[Tensor]) -> bool:
    """copy_, fill_ and out=… do not look at what is there."""
    if not written or all(t is not w for w in written):
        return False
    schema = func._schema
    name = schema.name.partition("::")[2]
    if name in ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_"):
        return True
    return any(a.is_out for a in schema.arguments)


# ---- what is moved


def moved(name: str, kind: str, reads: list[Touched], writes: list[Touched]) -> int:
    """Bytes that a call must read and write, each tensor once.

    What picks rows out of a table reads as much as it writes, and its indices.
    """
    if kind == "view" or name in kinds.FREE:
        return 0
    out = sum(t.bytes for t in writes)
    seen: dict[tuple[Any, ...], int] = {(t.value, t.offset, t.shape): t.bytes for t in reads}
    if kind == "index" and reads and name in _PICKS:
        indices = sum(t.bytes for t in reads if t.dtype.startswith("int"))
        return 2 * out + min(indices, sum(seen.values()))
    return out + sum(seen.values())


_PICKS = frozenset(("embedding", "index", "index_select", "gather", "take"))


def _under_autocast() -> bool:
    """By how deep autocasts are nested: while one casts, it says that it is disabled."""
    nested = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return bool(nested > 0)


def _in_optimizer(frame: Any) -> bool:
    depth = 0
    while frame is not None and depth < 12:
        if "/torch/optim/" in frame.f_code.co_filename:
            return True
        frame, depth = frame.f_back, depth + 1
    return False


def _numbers(args: Any, kwargs: Any) -> str:
    """The arguments that are no tensors."""
    values = (*args, *(f"{k}={v}" for k, v in kwargs.items() if _is_number(v)))
    return ", ".join(str(v) for v in values if _is_number(v))[:_MOST_TEXT]


def _is_number(value: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    if isinstance(value, (list, tuple)):
        return all(isinstance(v, (int, bool)) for v in value)
    return isinstance(value, (bool, int, float, str, torch.dtype, torch.device))
