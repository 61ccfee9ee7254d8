"""`fused.source`: the text of the functors that run, under headings that say what they move."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from megafuse.codegen.functor import functor_text
from megafuse.codegen.names import type_name
from megafuse.compiler.compile import Compiled
from megafuse.compiler.labels import backward_labels, forward_labels
from megafuse.graph.plan import Address, Buffer, Call, Kernel, Plan, Tensor
from megafuse.graph.show import typed_as

if TYPE_CHECKING:
    from megafuse.compiler.fused import Fused

WIDTH = 100


def source(fused: Fused, variants: Sequence[Compiled]) -> str:
    """Every kernel of these variants."""
    name = getattr(fused.function, "__name__", "function")
    if not variants:
        return (
            f"// {name} has not been called yet: call it once, or ask for\n"
            f"// {name}.source_for(…) with arguments.\n"
        )
    parts = [part for variant in variants for part in variant_source(name, variant)]
    return "\n".join(parts)


def variant_source(name: str, variant: Compiled) -> list[str]:
    """Forward and backward for one kind of arguments."""
    captured = variant.captured
    parts = [_remark(f"==== {name}({', '.join(map(_argument, captured.arguments))})")]
    parts += _steps("forward", variant.forward[1], forward_labels(variant.forward[1], captured))
    if variant.backward is not None:
        plan = variant.backward[1]
        parts += _steps("backward", plan, backward_labels(plan, captured))
    return parts


def _argument(argument: Any) -> str:
    if argument.kind == "tensor":
        dtype = str(argument.value.dtype).removeprefix("torch.")
        return f"{argument.name}: {dtype}, {argument.value.dim()}-d"
    return f"{argument.name}: number" if argument.kind == "number" else f"{argument.name}=fixed"


def _steps(which: str, plan: Plan, labels: dict[Buffer, str]) -> list[str]:
    """Each functor once, where it first runs; calls of the library by name."""
    parts, shown = [], set()
    for at, step in enumerate(plan.steps, 1):
        heading = f"---- {which}, step {at} of {len(plan.steps)}: "
        if isinstance(step, Call):
            lines = [_remark(f"{heading}{step.target}, by the library")]
            lines.append(_moved("reads ", [t.buffer for t in call_reads(step)], labels))
            lines.append(_moved("writes", [b for b in step.writes if b is not None], labels))
            parts.append("".join(lines))
            continue
        kind = "row by row" if step.body.row_wise else "element by element"
        lines = [_remark(f"{heading}{type_name(step.body.name)}, {kind}")]
        lines.append(_moved("reads ", read_buffers(step), labels))
        lines.append(_moved("writes", step.writes, labels))
        if step.sums:
            sums = [o.buffer for o in step.sums if o.buffer is not None]
            lines.append(_moved("adds up", sums, labels))
        if step.body.name in shown:
            lines.append("// The functor is the same as above.\n")
        else:
            lines.append(functor_text(step.body))
        shown.add(step.body.name)
        parts.append("".join(lines))
    return parts


def read_buffers(step: Kernel) -> list[Buffer]:
    """What a kernel reads, each once."""
    found = [o.buffer for o in step.inputs if o.buffer is not None]
    found += [word.buffer for word in step.words if isinstance(word, Address)]
    return list(dict.fromkeys(found))


def call_reads(step: Call) -> list[Tensor]:
    """The tensors among a call's arguments."""
    found: list[Tensor] = []
    pending = [*step.args, *step.kwargs.values()][::-1]
    while pending:
        item = pending.pop()
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            pending += item[::-1]
    return found


def _moved(verb: str, buffers: Sequence[Buffer], labels: dict[Buffer, str]) -> str:
    named = [f"{label(b, labels)} {typed_as(b.dtype, b.shape)}" for b in dict.fromkeys(buffers)]
    return _remark(f"{verb} {', '.join(named) or 'nothing'}")


def label(buffer: Buffer, labels: dict[Buffer, str]) -> str:
    return labels.get(buffer) or buffer.name or "a number"


def _remark(text: str) -> str:
    lines = textwrap.wrap(text, WIDTH, initial_indent="// ", subsequent_indent="//        ")
    return "\n".join(lines) + "\n"


__all__ = ["call_reads", "label", "read_buffers", "source", "variant_source"]
