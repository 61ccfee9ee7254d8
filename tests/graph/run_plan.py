"""Runs a Plan in Python: kernels by interpreting their bodies over strided memory, calls by ATen.

Slow and simple, so that a plan can be held against eager before there is any C++.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from megafuse.codegen.body import Applied, Fetched, Loaded, Reduced, Scalar, Term, Written, terms
from megafuse.graph.body_builder import DTYPES
from megafuse.graph.evaluate import evaluated
from megafuse.graph.interpret import evaluate_prim
from megafuse.graph.ir import Graph, Number
from megafuse.graph.multiples import told
from megafuse.graph.plan import Address, Buffer, Call, Kernel, Operand, Plan, Tensor

NAMES = {name: dtype for dtype, name in DTYPES.items()}
HALVES = (torch.float16, torch.bfloat16)


def run_plan(plan: Plan, graph: Graph, args: Sequence[Any]) -> list[Any]:
    """What the plan returns for these arguments."""
    return _Run(plan, graph, [*args, *graph.constants]).outputs()


class _Run:
    def __init__(self, plan: Plan, graph: Graph, args: Sequence[Any]) -> None:
        self.plan = plan
        self.symbols: dict[sympy.Symbol, Any] = {}
        self.memory: dict[Buffer, torch.Tensor] = {}
        self.written: set[Buffer] = set()
        for value, buffer in zip(graph.inputs, plan.arguments, strict=True):
            arg = args[value.position]
            if isinstance(value, Number):
                assert buffer is None
                self.bind(value.symbol, arg)
                continue
            assert buffer is not None
            self.memory[buffer] = arg
            self.written.add(buffer)
            for size, real in zip(
                (*value.shape, *value.strides), (*arg.shape, *arg.stride()), strict=True
            ):
                self.bind(size, real)
        for step in plan.steps:
            if isinstance(step, Kernel):
                self.kernel(step)
            else:
                self.call(step)

    def bind(self, size: Any, real: Any) -> None:
        found = told(size)
        if found is not None:
            self.symbols.setdefault(found[0], real if found[1] == 1 else real // found[1])

    def int(self, size: Any) -> int:
        return int(evaluated(size, self.symbols))

    def ints(self, sizes: Sequence[Any]) -> list[int]:
        return [self.int(size) for size in sizes]

    def outputs(self) -> list[Any]:
        return [self.output(out) for out in self.plan.outputs]

    def output(self, out: Any) -> Any:
        if isinstance(out, Tensor):
            return self.tensor(out)
        return None if out is None else evaluated(out, self.symbols)

    # Memory

    def allocate(self, buffer: Buffer) -> torch.Tensor:
        assert buffer not in self.memory, f"{buffer.name} is written twice"
        shape, strides = self.ints(buffer.shape), self.ints(buffer.strides)
        made = torch.empty_strided(shape, strides, dtype=buffer.dtype)
        whole = torch.as_strided(made, (made.untyped_storage().nbytes() // made.itemsize,), (1,))
        whole.fill_(True if buffer.dtype == torch.bool else 111)  # poison
        self.memory[buffer] = made
        return made

    def read(self, buffer: Buffer) -> torch.Tensor:
        assert buffer in self.written, f"{buffer.name} is read before it is written"
        return self.memory[buffer]

    def tensor(self, tensor: Tensor) -> torch.Tensor:
        base = self.read(tensor.buffer)
        shape, strides = self.ints(tensor.shape), self.ints(tensor.strides)
        start = base.storage_offset() + self.int(tensor.offset)
        return torch.as_strided(base, shape, strides, start if math.prod(shape) else 0)

    # Calls

    def call(self, step: Call) -> None:
        args, kwargs = pytree.tree_map(self.argument, (step.args, step.kwargs))
        results = pytree.tree_leaves(step.target(*args, **kwargs))
        for buffer, result in zip(step.writes, results, strict=True):
            if buffer is not None:
                assert list(result.shape) == self.ints(buffer.shape)
                assert result.dtype == buffer.dtype
                strides = self.ints(buffer.strides)
                for size, real, promised in zip(
                    result.shape, result.stride(), strides, strict=True
                ):
                    assert size <= 1 or real == promised or result.numel() == 0
                self.memory[buffer] = result
                self.written.add(buffer)

    def argument(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self.tensor(arg)
        return evaluated(arg, self.symbols) if isinstance(arg, sympy.Basic) else arg

    # Kernels

    def kernel(self, step: Kernel) -> None:
        assert len(step.writes) + len(step.inputs) <= 20
        shape = self.ints(step.shape)
        made = [self.allocate(buffer) for buffer in step.writes]
        if all(tensor.numel() == 0 for tensor in made):
            self.written.update(step.writes)
            return
        body = _BodyRun(self, step, shape)
        results = list(zip(step.body.outputs, (*step.outputs, *step.sums), strict=True))
        for term, operand in results[: len(step.outputs)]:
            self.store(operand, body.values[term], shape, term)
        for term, operand in results[len(step.outputs) :]:
            self.sum(operand, body.values[term].expand(shape))
        rows = [*shape[:-1], 1]
        for term, operand in zip(step.body.row_outputs, step.row_outputs, strict=True):
            assert operand.strides[-1] == 0
            value = body.values[term]
            if value.dim() == len(shape) and value.shape[-1] > 1:
                value = value[..., :1]
            self.store(operand, value, rows, term)
        self.written.update(step.writes)

    def sum(self, operand: Operand, terms: torch.Tensor) -> None:
        """Along dimensions without a stride; the others lie beside each other."""
        assert operand.buffer is not None
        assert terms.dtype in (torch.float32, torch.float64)
        strides = self.ints(operand.strides)
        base = self.memory[operand.buffer]
        if operand.parts:
            assert not any(strides)
            shares = terms.flatten().tensor_split(operand.parts)
            base.copy_(torch.stack([share.sum() for share in shares]))
            return
        for dim, stride in enumerate(strides):
            if stride == 0:
                terms = terms.sum(dim, keepdim=True)
        to = torch.as_strided(base, terms.shape, strides, self.int(operand.offset))
        to.copy_(terms)

    def store(self, operand: Operand, value: torch.Tensor, shape: list[int], term: Term) -> None:
        assert operand.buffer is not None
        assert NAMES[term.dtype] == operand.buffer.dtype, (term, operand.buffer)
        base = self.memory[operand.buffer]
        strides, start = self.ints(operand.strides), self.int(operand.offset)
        value = value.expand(shape)
        for dim, stride in enumerate(strides):
            if stride == 0:  # the same all along it
                value = value.narrow(dim, 0, 1)
        to = torch.as_strided(base, value.shape, strides, base.storage_offset() + start)
        to.copy_(value)


class _BodyRun:
    """One kernel: every term for all elements at once, in the type that arithmetic is done in."""

    def __init__(self, run: _Run, step: Kernel, shape: list[int]) -> None:
        self.run, self.step, self.shape = run, step, shape
        assert len(step.words) == step.body.scalars
        assert len(step.inputs) == len(step.body.inputs)
        self.values: dict[Term, torch.Tensor] = {}
        for term in terms(step.body):
            self.values[term] = getattr(self, type(term).__name__.lower())(term)

    def axes(self) -> list[torch.Tensor]:
        rank = len(self.shape)
        return [
            torch.arange(n).reshape(-1, *(1,) * (rank - k - 1)) for k, n in enumerate(self.shape)
        ]

    def loaded(self, term: Loaded) -> torch.Tensor:
        operand = self.step.inputs[term.operand]
        assert self.step.body.inputs[term.operand] == term.dtype
        strides, start = self.run.ints(operand.strides), self.run.int(operand.offset)
        assert len(strides) == len(self.shape)
        if operand.buffer is None:
            total = torch.full([1] * len(self.shape), start)
            for i, stride in zip(self.axes(), strides, strict=True):
                total = total + i * stride
            return total.expand(self.shape)
        base = self.run.read(operand.buffer)
        assert NAMES[term.dtype] == operand.buffer.dtype
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=_held(base.dtype))
        place = torch.tensor(base.storage_offset() + start)
        for i, stride in zip(self.axes(), strides, strict=True):
            place = place + i * stride  # kernels have negative strides, torch has not
        return _flat(base)[place.expand(self.shape)].to(_held(base.dtype))

    def scalar(self, term: Scalar) -> torch.Tensor:
        word = self.step.words[term.slot]
        assert not isinstance(word, Address)
        number = evaluated(word, self.run.symbols)
        return torch.tensor(number, dtype=NAMES[term.dtype])

    def written(self, term: Written) -> torch.Tensor:
        return torch.tensor(term.value, dtype=_held(NAMES[term.dtype]))

    def applied(self, term: Applied) -> torch.Tensor:
        args = [self.values[arg] for arg in term.args]
        dtype = NAMES[term.dtype]
        if term.prim.name == "cast":
            return args[0].to(dtype).to(_held(dtype))
        if term.prim.name == "demote":
            return args[0].to(_held(dtype))
        made = evaluate_prim(term.prim.name, args)
        return made.to(_held(dtype))

    def fetched(self, term: Fetched) -> torch.Tensor:
        address = self.step.words[term.base]
        assert isinstance(address, Address)
        base = self.run.read(address.buffer)
        flat = _flat(base)
        whole = flat.numel()
        place = torch.tensor(base.storage_offset() + self.run.int(address.offset))
        for at, slot in zip(term.at, term.strides, strict=True):
            place = place + self.values[at] * self.run.int(self.step.words[slot])
        held = _held(base.dtype)
        if term.inside is None:
            return flat[place].to(held)
        inside = self.values[term.inside]
        place, inside = torch.broadcast_tensors(place, inside)
        safe = torch.where(inside, place, 0)
        read = flat[safe] if whole else torch.zeros(safe.shape, dtype=base.dtype)
        return read.to(held).masked_fill(~inside, term.otherwise)

    def reduced(self, term: Reduced) -> torch.Tensor:
        x = self.values[term.arg].expand(self.shape)
        if term.kind == "sum":
            return x.sum(-1, keepdim=True)
        if term.kind == "expsum":
            return (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
        if x.shape[-1] == 0 and term.kind in ("amax", "amin"):
            return torch.full((*x.shape[:-1], 1), -math.inf if term.kind == "amax" else math.inf)
        return getattr(torch, term.kind)(x, -1, keepdim=True)


def _flat(base: torch.Tensor) -> torch.Tensor:
    """All memory that it is in."""
    return torch.as_strided(base, (base.untyped_storage().nbytes() // base.itemsize,), (1,), 0)


def _held(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype
