"""A plan as data for the host runtime, which makes a program of it (runtime/host/graph/parse.h).

Everything that changes from call to call is a slot of one code (symbols.py). Buffers are numbered;
each is allocated by the step that writes it and freed after the last one that reads it.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from megafuse.codegen.body import Applied, Loaded, Scalar, terms
from megafuse.codegen.functor import definition
from megafuse.graph import draws
from megafuse.graph.guards import checked
from megafuse.graph.ir import Graph, Input, Number, Size
from megafuse.graph.multiples import told
from megafuse.graph.plan import Address, Buffer, Call, Kernel, Operand, Plan, Tensor
from megafuse.graph.symbols import Code
from megafuse.runtime import cache, generated

# What the host knows by number.
_NUMBERED = {
    torch.strided: 0,
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


def describe(
    plan: Plan,
    graph: Graph,
    guards: tuple[sympy.Basic, ...],
    device: torch.device,
    name: str,
) -> dict[str, Any]:
    """The program of a plan. `graph` says what the arguments look like, `guards` what must hold."""
    return _Description(plan, graph, guards, device, name).program()


class _Description:
    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        guards: tuple[sympy.Basic, ...],
        device: torch.device,
        name: str,
    ) -> None:
        self.plan, self.graph, self.device, self.name = plan, graph, device, name
        self.code = Code()
        self.numbers: dict[Buffer, int] = {}
        known = [told(value.symbol) for value in graph.inputs if isinstance(value, Number)]
        left = checked(guards, [found[0] for found in known if found is not None])
        self.guards = self.checks() + [self.code.slot(guard) for guard in left]

    def program(self) -> dict[str, Any]:
        arguments = [-1 if b is None else self.number(b) for b in self.plan.arguments]
        steps = [self.step(step, last) for step, last in self.with_last_uses()]
        outputs = [self.output(output) for output in self.plan.outputs]
        given = len(arguments) - len(self.graph.constants)
        return {
            "name": self.name,
            "device": str(self.device),
            "code": self.code.instructions,
            "numbers": self.code.numbers,
            "guards": self.guards,
            "buffers": len(self.numbers),
            "arguments": arguments[:given],
            "constants": list(zip(arguments[given:], self.graph.constants, strict=True)),
            "steps": steps,
            "outputs": outputs,
        }

    # ---- arguments

    def checks(self) -> list[int]:
        """Defines each symbol where it stands alone; all else that is shown must be equal."""
        shown: list[tuple[Size, int]] = []
        idle: list[tuple[Size, int]] = []  # may define a symbol, and is not compared
        given = len(self.graph.inputs) - len(self.graph.constants)
        for at, value in enumerate(self.graph.inputs[:given]):
            if isinstance(value, Number):
                real = value.dtype == torch.float64
                slot = self.code.load("number", at, real=real)
                if value.symbol is not None:
                    shown.append((value.symbol, slot))
            else:
                sizes = enumerate(value.shape)
                shown += [(size, self.code.load("size", at, dim)) for dim, size in sizes]
        for at, value in enumerate(self.graph.inputs[:given]):
            if isinstance(value, Input):
                # Nobody walks in a tensor without elements, or along a dimension of size 1.
                inside = idle if 0 in value.shape else shown
                for dim, stride in enumerate(value.strides):
                    to = idle if value.shape[dim] == 1 else inside
                    to.append((stride, self.code.load("stride", at, dim)))
                if isinstance(value.offset, sympy.Symbol):
                    # What the forward saved begins where our memory does, not where torch's view.
                    to = idle if value.saved else inside
                    to.append((value.offset, self.code.load("offset", at)))
        for some in (shown, idle):  # an idle stride may be any number: sizes come from it last
            for size, slot in some:
                found = told(size)
                if found is not None and not self.code.knows(found[0]):
                    self.code.define(found[0], self.code.divided(slot, found[1]))
            self.solve(shown)
        compared = [(self.code.slot(size), slot) for size, slot in shown]
        return [self.code.equal(a, b) for a, b in compared if a != b]

    def solve(self, shown: list[tuple[Size, int]]) -> None:
        """Defines symbols that stand alone nowhere: s1 where a size is shown as s1 − 4 or 2·s1."""
        for size, slot in shown * 2:  # the second time with what the first has found
            symbols = [s for s in sympy.sympify(size).free_symbols if not self.code.knows(s)]
            if len(symbols) != 1 or not sympy.sympify(size).is_polynomial(*symbols):
                continue
            by = sympy.Poly(size, symbols[0]).all_coeffs()
            if len(by) == 2 and by[0].is_Integer:
                here = sympy.Dummy("here", integer=True)
                self.code.define(here, slot)
                self.code.define(symbols[0], self.code.slot(FloorDiv(here - by[1], by[0])))

    # ---- buffers

    def number(self, buffer: Buffer) -> int:
        return self.numbers.setdefault(buffer, len(self.numbers))

    def with_last_uses(self) -> list[tuple[Kernel | Call, list[Buffer]]]:
        """Each step with the buffers that nobody reads after it."""
        kept = {o.buffer for o in self.plan.outputs if isinstance(o, Tensor)}
        last: dict[Buffer, int] = {}
        for at, step in enumerate(self.plan.steps):
            for buffer in _touched(step):
                last[buffer] = at
        freed: list[list[Buffer]] = [[] for _ in self.plan.steps]
        for buffer, at in last.items():
            if buffer not in kept:
                freed[at].append(buffer)
        return list(zip(self.plan.steps, freed, strict=True))

    def typed(self, buffer: Buffer) -> tuple[Any, ...]:
        sizes, strides = self.code.slots(buffer.shape), self.code.slots(buffer.strides)
        return self.number(buffer), buffer.dtype, sizes, strides

    def view(self, tensor: Tensor) -> tuple[Any, ...]:
        buffer = tensor.buffer
        whole = (tensor.shape, tensor.strides) == (buffer.shape, buffer.strides)
        if whole and tensor.offset == 0:
            return self.number(buffer), None, None, None
        code = self.code
        sizes, strides = code.slots(tensor.shape), code.slots(tensor.strides)
        return self.number(buffer), sizes, strides, code.slot(tensor.offset)

    def output(self, output: Tensor | Size | None) -> tuple[Any, ...]:
        if output is None:
            return ("none",)
        if isinstance(output, Tensor):
            return "tensor", self.view(output), output.buffer.argument is not None
        slot = self.code.slot(output)
        return "real" if self.code.is_real(slot) else "integer", slot

    # ---- steps

    def step(self, step: Kernel | Call, freed: list[Buffer]) -> dict[str, Any]:
        made = self.kernel(step) if isinstance(step, Kernel) else self.call(step)
        written = step.writes if isinstance(step, Kernel) else []
        made["allocates"] = [self.typed(buffer) for buffer in dict.fromkeys(written)]
        made["frees"] = [self.number(b) for b in freed]
        return made

    def kernel(self, step: Kernel) -> dict[str, Any]:
        text = definition(step.body, runs=True)
        functor = f"{step.body.name}_{cache.key('functor', text)[:16]}"
        generated.declare(functor, step.body)
        outputs = [
            *(self.walked(o, "c", i) for i, o in enumerate(step.outputs)),
            *(self.summed(o, i, step) for i, o in enumerate(step.sums, len(step.outputs))),
            *(self.walked(o, "w", i) for i, o in enumerate(step.row_outputs)),
        ]
        inputs = [self.walked(o, "c" if o.buffer else "i", 0) for o in step.inputs]
        scalars = [term for term in terms(step.body) if isinstance(term, Scalar)]
        reals = {scalar.slot for scalar in scalars if scalar.dtype == "Double"}
        return {
            "kind": "kernel",
            "functor": functor,
            "row_wise": step.body.row_wise,
            "outputs": len(outputs),
            "shape": self.code.slots(step.shape),
            "operands": outputs + inputs,
            "words": [self.word(word, at in reals) for at, word in enumerate(step.words)],
        }

    def walked(self, operand: Operand, walk: str, result: int) -> tuple[Any, ...]:
        offset, strides = self.code.slot(operand.offset), self.code.slots(operand.strides)
        if operand.buffer is None:
            return -1, torch.int64, walk, result, offset, strides, torch.int64, -1, 0
        number, dtype = self.number(operand.buffer), operand.buffer.dtype
        return number, dtype, walk, result, offset, strides, dtype, -1, operand.parts

    def summed(self, operand: Operand, result: int, step: Kernel) -> tuple[Any, ...]:
        """As walked, with the dtype of its terms first and that of what is stored in the end last;
        then the operand that the terms are as they lie in memory, or -1, and its parts, or 0."""
        number, _, *walk, _, parts = self.walked(operand, "r", result)
        term = step.body.outputs[result]
        dtype = torch.float64 if term.dtype == "Double" else torch.float32
        if isinstance(term, Applied) and term.prim.name == "cast":
            (term,) = term.args
        source = -1
        if isinstance(term, Loaded) and not step.body.row_wise:
            source = len(step.outputs) + len(step.sums) + term.operand
            source = source if step.inputs[term.operand].buffer else -1
        return number, dtype, *walk, source, parts

    def word(self, word: Size | float | Address, real: bool) -> tuple[int, int]:
        if isinstance(word, Address):
            return self.number(word.buffer), self.code.slot(word.offset)
        return -1, self.code.slot(word, real)

    def call(self, step: Call) -> dict[str, Any]:
        if step.target is draws.ops.state.default:
            (buffer,) = step.writes
            return {"kind": "draw", "buffer": -1 if buffer is None else self.number(buffer)}
        schema = step.target._schema
        given = dict(zip((a.name for a in schema.arguments), step.args, strict=False))
        given |= step.kwargs
        return {
            "kind": "call",
            "name": schema.name,
            "overload": schema.overload_name,
            "arguments": [
                self.argument(given.get(a.name, a.default_value)) for a in schema.arguments
            ],
            "writes": [(-1,) if b is None else self.typed(b) for b in step.writes],
        }

    def argument(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, Tensor):
            return "tensor", self.view(value)
        if isinstance(value, (list, tuple)):
            return "list", [self.argument(item) for item in value]
        if isinstance(value, sympy.Basic):
            slot = self.code.slot(value)
            return "real" if self.code.is_real(slot) else "integer", slot
        if isinstance(value, torch.device):
            return "constant", str(value)
        return "constant", _NUMBERED.get(value, value) if _is_hashable(value) else value


def _is_hashable(value: Any) -> bool:
    return isinstance(value, (torch.layout, torch.memory_format))


def _touched(step: Kernel | Call) -> set[Buffer]:
    if isinstance(step, Kernel):
        operands = (*step.outputs, *step.sums, *step.row_outputs, *step.inputs)
        found = {o.buffer for o in operands if o.buffer is not None}
        return found | {w.buffer for w in step.words if isinstance(w, Address)}
    found = {buffer for buffer in step.writes if buffer is not None}
    pending = [*step.args, *step.kwargs.values()]
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor):
            found.add(item.buffer)
        elif isinstance(item, (list, tuple)):
            pending += item
    return found
