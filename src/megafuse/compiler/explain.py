"""`fused.explain(…)`: what runs for these arguments, how many bytes it moves, and why so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from megafuse.codegen.body import terms
from megafuse.codegen.names import type_name
from megafuse.compiler import eager
from megafuse.compiler.compile import Compiled, NotFused, compiled
from megafuse.compiler.eager import Traffic
from megafuse.compiler.fused import Rounding
from megafuse.compiler.labels import (
    SAVED,
    backward_labels,
    forward_labels,
    saved_beside_arguments,
)
from megafuse.compiler.recomputed import recomputed
from megafuse.compiler.source import call_reads, label, read_buffers
from megafuse.graph.errors import CaptureError
from megafuse.graph.ir import Graph, Input, Number, Reduce, Value
from megafuse.graph.multiples import told
from megafuse.graph.patterns import product
from megafuse.graph.plan import Buffer, Call, Cut, Kernel, Plan

Symbols = dict[sympy.Symbol, Any]


@dataclass(frozen=True)
class Step:
    """One launch of ours, or one operation of the library's."""

    name: str  # GatedNorm, or aten.mm.default
    kind: str  # "pointwise", "rows" or "library"
    lines: tuple[str, ...]  # the user's lines that it computes
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    reason: str = ""  # why the library does it
    sums: tuple[str, ...] = ()  # what it writes that is added up, without storing its terms
    modules: tuple[str, ...] = ()  # of a model: those whose forward it computes a part of

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Stored:
    """A value that goes through memory from one step to another, and why."""

    value: str
    line: str
    reason: str


@dataclass(frozen=True)
class Pass:
    """The forward, or the backward."""

    name: str
    steps: tuple[Step, ...]
    cuts: tuple[Stored, ...]
    eager: Traffic | None

    @property
    def bytes_moved(self) -> int:
        return sum(step.bytes_moved for step in self.steps)

    @property
    def launches(self) -> int:
        return len(self.steps)

    @property
    def kernels(self) -> int:
        return sum(step.kind != "library" for step in self.steps)

    @property
    def library_calls(self) -> int:
        return self.launches - self.kernels

    def __str__(self) -> str:
        from megafuse.compiler.explained import pass_lines

        return "\n".join(pass_lines(self))


@dataclass(frozen=True)
class Explanation:
    """What `explain` found. `str()` of it is for people, at 80 columns."""

    function: str
    arguments: tuple[str, ...]
    device: str
    forward: Pass | None = None
    backward: Pass | None = None
    saved: tuple[str, ...] = ()  # for the backward: what takes memory of its own
    saved_bytes: int = 0
    recomputed: tuple[str, ...] = ()  # by the backward
    not_fused: str = ""  # why the function runs as it is, or
    raises: bool = False  # why a call with these arguments is an error
    guards: tuple[str, ...] = ()  # what must hold of sizes and numbers for this to run

    def __str__(self) -> str:
        from megafuse.compiler.explained import text

        return text(self)


def explain(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rounding: Rounding = "fused",
    device: torch.device | None = None,
    dynamic: bool = True,
) -> Explanation:
    """Captures and cuts anew for these arguments; compiles and computes nothing."""
    name = str(getattr(function, "__name__", "function"))
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    where = device or next((t.device for t in leaves if isinstance(t, torch.Tensor)), "no device")
    try:
        made = compiled(function, args, kwargs, rounding, device, dynamic)
    except (NotFused, CaptureError) as why:
        raises = isinstance(why, CaptureError)
        return Explanation(name, (), str(where), not_fused=str(why), raises=raises)
    captured = made.captured
    symbols = symbols_of(made, args, kwargs)
    forward, backward = eager.counted(function, args, kwargs)
    plan = made.forward[1]
    kept = saved_beside_arguments(plan, captured)
    return Explanation(
        name,
        tuple(_argument(a.name, leaf) for a, leaf in zip(captured.arguments, leaves, strict=True)),
        str(where),
        pass_of("forward", plan, forward_labels(plan, captured), symbols, forward),
        _backward(made, symbols, backward),
        tuple(buffer.name for buffer in kept),
        sum(_bytes(buffer.dtype, buffer.shape, symbols) for buffer in kept),
        tuple(recomputed(made)),
        guards=tuple(map(str, captured.guards)),
    )


def _backward(made: Compiled, symbols: Symbols, traffic: Traffic | None) -> Pass | None:
    if made.backward is None:
        return None
    plan = made.backward[1]
    return pass_of("backward", plan, backward_labels(plan, made.captured), symbols, traffic)


def pass_of(
    name: str, plan: Plan, labels: dict[Buffer, str], symbols: Symbols, traffic: Traffic | None
) -> Pass:
    """A plan's steps, with what eager would move beside."""
    steps = tuple(_step(step, labels, symbols) for step in plan.steps)
    return Pass(name, steps, tuple(map(_stored, plan.cuts)), traffic)


def _step(step: Kernel | Call, labels: dict[Buffer, str], symbols: Symbols) -> Step:
    if isinstance(step, Call):
        return _call(step, labels, symbols)
    return Step(
        type_name(step.body.name),
        "rows" if step.body.row_wise else "pointwise",
        tuple(dict.fromkeys(t.line.strip() for t in terms(step.body) if t.line)),
        tuple(label(b, labels).removesuffix(SAVED) for b in read_buffers(step)),
        tuple(label(b, labels) for b in dict.fromkeys(step.writes)),
        int(_known(step.bytes_read, symbols)),
        int(_known(step.bytes_written, symbols)),
        sums=tuple(label(o.buffer, labels) for o in step.sums if o.buffer is not None),
        modules=_modules(step.values),
    )


def _call(step: Call, labels: dict[Buffer, str], symbols: Symbols) -> Step:
    read = call_reads(step)
    written = [b for b in step.writes if b is not None]
    line = step.value.origin.text if step.value is not None else None
    return Step(
        product.label(step.args) if _is_product(step) else str(step.target),
        "library",
        (line.strip(),) if line else (),
        tuple(dict.fromkeys(label(t.buffer, labels).removesuffix(SAVED) for t in read)),
        tuple(label(b, labels) for b in written),
        sum(_bytes(t.buffer.dtype, t.shape, symbols) for t in read),
        sum(_bytes(b.dtype, b.shape, symbols) for b in written),
        _why_the_library(step),
        modules=_modules([step.value] if step.value is not None else []),
    )


def _modules(values: Sequence[Value]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(v.origin.module for v in values if v.origin.module is not None))


def _is_product(step: Call) -> bool:
    return step.target is product.PRODUCT


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "matmul", "linear", "mv", "dot", "addmv")


def _why_the_library(step: Call) -> str:
    name = step.target._schema.name.removeprefix("aten::")
    if name == "megafuse_graph::state":
        return "the kernels' random numbers are made of its 16 bytes, from torch's generator"
    if _is_product(step):
        return "matrix products are the library's, or our GEMM's where that is faster"
    if isinstance(step.value, Reduce):
        return _why_the_library_reduces(step.value)
    if "softmax" in name:
        return "its softmax is along a dimension that is not the last"
    if name in _PRODUCTS:
        return "matrix products are the library's"
    if "attention" in name or "convolution" in name:
        return f"{'attention is' if 'attention' in name else 'convolutions are'} the library's"
    if torch.Tag.nondeterministic_seeded in step.target.tags:
        return "it draws random numbers, as PyTorch draws them"
    return f"there is no kernel of ours for {name}"


def _why_the_library_reduces(value: Reduce) -> str:
    if len(value.dims) == len(value.source.shape):
        return "all elements are one row, too long for a thread"
    if value.kind == "sum" and value.dtype.is_floating_point:
        return "it sums dimensions that lie on both sides of others that stay"
    return "it reduces dimensions that are not the last, and is no sum of floats"


def _stored(cut: Cut) -> Stored:
    line = cut.value.origin.text or cut.reader.origin.text or ""
    return Stored(cut.value.name, line.strip(), cut.reason)


def _argument(name: str, leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return f"{name}={leaf!r}"
    dtype = str(leaf.dtype).removeprefix("torch.")
    return f"{name}: {dtype}{list(leaf.shape)}"


# ---- sizes


def symbols_of(made: Compiled, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Symbols:
    """What each symbol is in this call."""
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    return symbols_in(made.forward[0], [leaves[i] for i in made.captured.placeholders()])


def symbols_in(graph: Graph, leaves: Sequence[Any]) -> Symbols:
    """What each symbol is where a graph's inputs are these. A stand-in's size that is a symbol
    itself is what it was in the call that the stand-in was made for."""
    found: Symbols = {}
    for value, leaf in zip(graph.inputs, leaves, strict=False):
        if isinstance(value, Number):
            pairs = [(value.symbol, leaf)]
        else:
            assert isinstance(value, Input)
            pairs = [*zip(value.shape, leaf.shape, strict=True)]
            pairs += [*zip(value.strides, leaf.stride(), strict=True)]
            pairs.append((value.offset, leaf.storage_offset()))
        tells = ((told(size), _plain(number)) for size, number in pairs)
        found.update((t[0], n if t[1] == 1 else n // t[1]) for t, n in tells if t is not None)
    return found


def _plain(number: Any) -> Any:
    return number.node.hint if isinstance(number, (torch.SymInt, torch.SymFloat)) else number


def _known(size: Any, symbols: Symbols) -> Any:
    return size.subs(symbols) if isinstance(size, sympy.Basic) else size


def _bytes(dtype: torch.dtype, shape: Sequence[Any], symbols: Symbols) -> int:
    count = 1
    for size in shape:
        count *= int(_known(size, symbols))
    return count * dtype.itemsize


__all__ = [
    "Explanation",
    "Pass",
    "Step",
    "Stored",
    "explain",
    "pass_of",
    "symbols_in",
    "symbols_of",
]
