"""One op whole, for a terminal: formula, signature, shapes, cost, kernel, reference, a call."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megafuse.registry import Op
from megafuse.registry.arguments import FLOATS, Argument
from megafuse.registry.cost import Cost
from megafuse.registry.sample import Draw

_WIDTH = 80
_ROOT = Path(__file__).resolve().parent.parent  # the package
_HEADER_LINES = 40  # of the functors' header; the path above them leads to the rest
# [rows, columns]; of ops that want so many dimensions [batch, sequence, features] and
# [batch, heads, sequence, head size].
_SHAPES = {3: (2, 128, 256), 4: (2, 8, 128, 64)}


def text(op: Op) -> str:
    """The whole card."""
    args = op.sample(Draw(_shape(op), device="meta"))
    parts = [
        f"{call(op)}\n\n{_indented(inspect.getdoc(op.reference) or '')}",
        "\n".join(_facts(op, args)),
        _code("reference", Path(inspect.getfile(op.reference)), _source(op)),
        _kernel(op),
        f"example:\n{_indented(_example(op, args))}",
    ]
    return "\n\n".join(parts)


def call(op: Op) -> str:
    """gelu_scale(x, scale, approximate="tanh")"""
    parameters = inspect.signature(op.reference).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return f"{op.name}({', '.join(map(str, bare))})".replace("'", '"')


def formula(op: Op) -> str:
    """The first line of the op's docstring."""
    return (inspect.getdoc(op.reference) or "").splitlines()[0]


def dtypes(op: Op) -> str:
    """float32, float16, …; q also integer or bool → int8"""
    text = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
    wider = [a.name for a in op.arguments if a.kind == "any_tensor"]
    text += f"; {', '.join(wider)} also integer or bool" if wider else ""
    return text + (f" → {op.signature.output_dtype}" if op.signature.output_dtype else "")


# ---- facts


def _facts(op: Op, args: tuple[Any, ...]) -> list[str]:
    size = "×".join(map(str, _shape(op)))
    facts = {
        "family": op.family,
        "dtypes": dtypes(op),
        "shapes": _shapes(op),
        "values": ", ".join(filter(None, map(_values, op.arguments))),
        "outputs": ", ".join(op.signature.returns),
        "gradient of": ", ".join(op.autograd.grads) or "none",
        "saved for backward": ", ".join(op.autograd.saves) if op.differentiable else "",
        f"forward, {size} float32": _cost(op.cost(*args)),
        "backward": _cost(op.backward_cost(*args)) if op.differentiable else "",
    }
    lines = []
    for name, said in facts.items():
        if said:
            lines += textwrap.wrap(f"{name}: {said}", _WIDTH, subsequent_indent="    ")
    return lines


def _shapes(op: Op) -> str:
    ruled = {a.name: a.shape for a in op.arguments if a.shape}
    if not ruled:
        return "any, broadcast against each other"
    return ", ".join(f"{name} {_rule(rule)}" for name, rule in ruled.items())


def _rule(rule: str) -> str:
    """[..., 3E, E]"""
    sizes, digits = ["..."] if rule.startswith("...") else [], ""
    for letter in rule.removeprefix("..."):
        if letter.isdigit():
            digits += letter
        else:
            sizes.append(digits + letter)
            digits = ""
    return f"[{', '.join(sizes)}]"


def _values(argument: Argument) -> str:
    """act is gelu or relu; p from 0 to 1; nothing for what may be anything."""
    if argument.choices:
        return f"{argument.name} is {' or '.join(argument.choices)}"
    if argument.kind in ("number", "integer") and argument.most < 2.0**53:
        return f"{argument.name} from {argument.least:g} to {argument.most:g}"
    return ""


def _cost(cost: Cost) -> str:
    launches = "1 launch" if cost.launches == 1 else f"{cost.launches} launches"
    return f"{cost.bytes_moved:,} bytes at least, {cost.flops:,} FLOP, {launches} on CUDA"


# ---- code


def _source(op: Op) -> str:
    return inspect.getsource(op.reference)


def _kernel(op: Op) -> str:
    if op.functors is None:  # a program of its own, which runtime/host/programs/programs.h lists
        programs = _ROOT / "runtime" / "host" / "programs"
        own = programs / f"{op.program}.h"
        return _header("program", own if own.is_file() else programs / "programs.h")
    if op.functors.text:
        return f"functors:\n{_indented(op.functors.text.strip())}"
    return _header("functors", _ROOT / "kernels" / op.functors.header)


def _header(what: str, path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    more = len(lines) - _HEADER_LINES
    shown = lines if more <= 3 else [*lines[:_HEADER_LINES], f"… and {more} more lines"]
    return _code(what, path, "\n".join(shown))


def _code(what: str, path: Path, text: str) -> str:
    return f"{what}, {_said(path)}:\n{_indented(text.rstrip())}"


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _said(path: Path) -> str:
    """From the package on: the machine's own folders say nothing."""
    return f"megafuse/{path.relative_to(_ROOT)}" if path.is_relative_to(_ROOT) else path.name


def _shape(op: Op) -> tuple[int, ...]:
    rule = op.arguments[0].shape
    rank = 0 if not rule or rule.startswith("...") else sum(c.isalpha() for c in rule)
    return _SHAPES.get(rank, (1024, 1024))


def _example(op: Op, args: tuple[Any, ...]) -> str:
    """Lines that can be pasted; arguments that have their default are left out at the end."""
    named = list(zip(op.arguments, args, strict=True))
    while named and not isinstance(named[-1][1], Tensor) and named[-1][1] == named[-1][0].default:
        named.pop()
    lines = ["import torch, megafuse as mf"]
    lines += [f"{a.name} = {_drawn(v)}" for a, v in named if isinstance(v, Tensor)]
    given = ", ".join(a.name if isinstance(v, Tensor) else repr(v) for a, v in named)
    return "\n".join([*lines, f"{', '.join(op.signature.returns)} = mf.{op.name}({given})"])


def _drawn(value: Tensor) -> str:
    sizes = ", ".join(map(str, value.shape))
    if value.dtype == torch.int8:
        return f"torch.randint(-128, 128, ({sizes},), dtype=torch.int8)"
    return f"torch.randn({sizes})"
