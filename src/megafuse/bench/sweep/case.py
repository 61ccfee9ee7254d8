"""One case of a sweep: an op on arguments of one shape, laid out in one way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from megafuse.bench import contenders as who
from megafuse.bench import op_job
from megafuse.bench.job import Job, Mode
from megafuse.bench.result import Choice, worded
from megafuse.registry import OPS, Op
from megafuse.registry.sample import Draw

LAYOUTS = {
    "plain": "contiguous",
    "offset": "one element into its memory",
    "gap": "rows whose distance is no multiple of a vector",
}
FORMS = {
    "full": "of x's shape",
    "row": "one value a column",
    "channel": "one value a row of the last two dimensions",
    "number": "one number",
}
_VECTOR = 16  # bytes
KNOWN = "known"  # the kind of a case that is not drawn


@dataclass(frozen=True)
class Case:
    """What is drawn: deterministic, and enough to make the arguments again."""

    op: str
    mode: Mode
    dtype: str
    shape: tuple[int, ...]
    kind: str
    layout: str = "plain"
    features: int | None = None
    choices: tuple[tuple[str, Choice], ...] = ()
    forms: tuple[tuple[str, str], ...] = ()  # of a pointwise op's further arguments

    @property
    def group(self) -> tuple[object, ...]:
        """What torch.compile with dynamic shapes needs to compile again for."""
        ones = tuple(size == 1 for size in self.shape)
        return (self.op, self.mode, self.dtype, self.layout, self.choices, self.forms, ones)

    @property
    def size(self) -> str:
        """8192×50257, 2048×4096→11008"""
        wide = [] if self.features is None else [str(self.features)]
        return "→".join(["×".join(map(str, self.shape)), *wide])

    @property
    def notes(self) -> str:
        """What else sets it apart: `tanh`, `no bias`, `scale a channel`, `offset`."""
        words = [worded(name, value) for name, value in self.choices]
        words += [f"{name}: {form}" for name, form in self.forms]
        return ", ".join([*words, *([self.layout] if self.layout != "plain" else [])])


def job_of(case: Case, device: str) -> Job:
    """The case as something to measure; raises ValueError or TypeError where the op refuses it."""
    op, dtype = OPS[case.op], getattr(torch, case.dtype)
    made = op_job.of_op(
        op,
        case.mode,
        dtype,
        case.shape,
        device,
        [who.fused(op, device)],
        case.features,
        dict(case.choices),
    )
    drawn = made.draw

    def draw() -> list[Any]:
        return [_laid_out(v, case) for v in _formed(op, drawn(), case)]

    return replace(made, draw=draw)


def accepted(case: Case) -> bool:
    """Whether the op takes such arguments: asked on the meta device, where nothing is computed."""
    op = OPS[case.op]
    draw = Draw(case.shape, getattr(torch, case.dtype), "meta", features=case.features)
    try:
        args = _formed(op, op_job.sample(op, draw, dict(case.choices)), case)
        op.check(*args)
    except (TypeError, ValueError):
        return False
    # A scale that is a number has no gradient, and q of int8 has none either.
    named = zip(op.arguments, args, strict=True)
    trained = (v for a, v in named if a.name in op.autograd.grads and isinstance(v, Tensor))
    return case.mode == "forward" or any(v.is_floating_point() for v in trained)


def _formed(op: Op, args: list[Any], case: Case) -> list[Any]:
    """With the further arguments broadcast as the case says."""
    x, forms = args[0], dict(case.forms)
    made = []
    for argument, value in zip(op.arguments, args, strict=True):
        form = forms.get(argument.name)
        if form is None:
            made.append(value)
        elif form == "number":
            made.append(0.05 if isinstance(value, Tensor) else value)
        else:
            trained = case.mode != "forward" and argument.name in op.autograd.grads
            made.append(_of_form(form, value, x, case).requires_grad_(trained))
    return made


def _of_form(form: str, value: Any, x: Tensor, case: Case) -> Tensor:
    shape = {"full": x.shape, "row": x.shape[-1:], "channel": (*x.shape[-2:-1], 1)}[form]
    # Near to the number it stands for: a scale near 0 would make of every element the largest one.
    size = 1.0 if isinstance(value, Tensor) else float(value)
    drawn = torch.rand(shape, device=x.device).add_(0.5).mul_(size)
    return drawn.to(getattr(torch, case.dtype))


def _laid_out(value: Any, case: Case) -> Any:
    """Tensors of the first one's shape with the case's layout; others as they are."""
    if case.layout == "plain" or not isinstance(value, Tensor) or value.shape != case.shape:
        return value
    source = value.detach()
    if case.layout == "offset":
        memory = source.new_empty(source.numel() + 1)
        view = memory[1:].view(source.shape)
    else:
        columns, vector = source.shape[-1], max(_VECTOR // source.element_size(), 1)
        pitch = next(columns + n for n in (1, 2) if (columns + n) % vector)
        rows = source.numel() // max(columns, 1)
        view = source.new_empty(rows, pitch)[:, :columns]
        strides = [pitch * s // max(columns, 1) for s in source.stride()[:-1]]
        view = view.as_strided(source.shape, [*strides, 1])
    return view.copy_(source).requires_grad_(value.requires_grad)
