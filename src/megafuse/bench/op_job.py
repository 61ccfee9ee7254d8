"""Jobs on ops of the registry: their arguments, and what the registry knows of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from megafuse.bench.arguments import copied
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.job import Job, Mode, Work, job_on
from megafuse.bench.result import Choice
from megafuse.bench.timing import cache_bytes
from megafuse.registry import Op
from megafuse.registry.arguments import Argument
from megafuse.registry.cost import results
from megafuse.registry.sample import Draw


def of_op(
    op: Op,
    mode: Mode,
    dtype: torch.dtype,
    shape: Sequence[int],
    device: str,
    contenders: list[Contender],
    features: int | None = None,
    choices: Mapping[str, Choice] | None = None,
) -> Job:
    """A job on an op of the registry, on arguments that the op draws.

    `features` is the width of its layer; `choices` are values of arguments by name: of a tensor
    that may be None whether it is given.
    """
    chosen = dict(choices or {})
    drawn = Draw(tuple(shape), dtype, device, features=features)

    def draw() -> list[Any]:
        return _wanting(op, sample(op, drawn, chosen), mode)

    imagined = sample(op, replace(drawn, device="meta"), chosen)
    op.check(*imagined)
    made = job_on(op.reference, imagined, mode, device, contenders, draw)
    made.dtype, made.shape = str(dtype).removeprefix("torch."), tuple(shape)
    made.choices, made.integers_are_data = chosen, True
    return _known(op, made, imagined)


def sample(op: Op, draw: Draw, choices: Mapping[str, Choice]) -> list[Any]:
    """The op's own arguments, with these choices made."""
    arguments = {a.name: a for a in op.arguments}
    optional = {n: bool(v) for n, v in choices.items() if arguments[n].is_tensor}
    given = frozenset(n for n, wanted in optional.items() if wanted)
    values = dict(zip(arguments, op.sample(replace(draw, given=given)), strict=True))
    values |= {n: None for n in optional if n not in given}
    values |= {n: v for n, v in choices.items() if n not in optional}
    missing = [n for n in given if values[n] is None]
    if missing:
        raise ValueError(f"{op.name} draws no {missing[0]}: see its `sample`")
    return list(values.values())


def of_op_call(op: Op, args: Sequence[Any], mode: Mode, contenders: list[Contender]) -> Job:
    """A job on an op, on the user's arguments."""

    def draw() -> list[Any]:
        return _wanting(op, [copied(a) for a in args], mode)

    made = _known(op, job_on(op.reference, args, mode, None, contenders, draw), args)
    first = args[0]
    if not op.pointwise and isinstance(first, Tensor):  # a weight may be larger
        made.dtype, made.shape = str(first.dtype).removeprefix("torch."), tuple(first.shape)
    made.choices = {
        a.name: value
        for a, value in zip(op.arguments, args, strict=True)
        if a.kind in ("choice", "flag", "integer", "number") and _sets_apart(a, value)
    }
    return made


def _sets_apart(argument: Argument, value: Any) -> bool:
    """A number that every call has to give (a scale) is a value like those of the tensors."""
    required = argument.default is inspect.Parameter.empty
    return value != argument.default and not (required and argument.kind == "number")


def _known(op: Op, made: Job, args: Sequence[Any]) -> Job:
    """Adds what the registry knows of an op: what it costs, and a copy of as many bytes."""
    if made.mode != "forward" and not op.differentiable:
        raise ValueError(f"{op.name} has no gradient: only `forward` can be measured")
    made.random = op.draws({a.name: v for a, v in zip(op.arguments, args, strict=True)})
    # Where FLOPs are so many an element there is no matrix product.
    made.multiplies = callable(op.flops)
    weights = _weights(op)
    made.weights = frozenset(i for i, a in enumerate(op.arguments) if a in weights)
    made.widths = _widths(op, args, weights)
    work = made.work = _work(op, list(args), made.mode, made.device)
    made.yardsticks["copy"] = lambda: copy_of(work.bytes_moved, made.device)
    return made


# ---- layers: which arguments are weights, and how wide they make it


def _letters(rule: str) -> list[str]:
    return [c for c in rule if c.isalpha()]


def _weights(op: Op) -> list[Argument]:
    """Arguments whose shape shares no leading dimension with the first one's."""
    first = op.arguments[0].shape
    leading = {"...", *_letters(first)[:-1]}
    return [a for a in op.arguments[1:] if a.shape and not any(d in a.shape for d in leading)]


def _widths(op: Op, args: Sequence[Any], weights: Sequence[Argument]) -> tuple[int, ...]:
    """The first size of a weight that x does not have, and the output's where it is another."""
    known = _letters(op.arguments[0].shape)
    for argument, value in zip(op.arguments, args, strict=True):
        if argument in weights and isinstance(value, Tensor):
            sizes = zip(_letters(argument.shape), value.shape, strict=True)
            width = next((size for letter, size in sizes if letter not in known), None)
            if width is not None:
                out = results(op, args)[0][0].shape[-1]
                return (width,) if out == width else (width, out)
    return ()


# ---- values


def _wanting(op: Op, args: Sequence[Any], mode: Mode) -> list[Any]:
    wanted = op.autograd.grads if mode != "forward" else {}
    return [
        a.requires_grad_() if n.name in wanted and _floats(a) else a
        for n, a in zip(op.arguments, args, strict=True)
    ]


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


# ---- the least to do


def _work(op: Op, args: list[Any], mode: Mode, device: str) -> Work:
    cache = cache_bytes(device)
    forward = op.cost(*args)
    # What is written may stay in the cache: only what does not fit must go to memory.
    kept = max(0, forward.bytes_written - cache)
    spared = forward.bytes_moved - forward.bytes_written + kept
    if mode != "forward+backward":
        return Work(forward.bytes_moved, spared, forward.flops)
    backward = op.backward_cost(*args)
    rest = max(0, backward.bytes_moved - 2 * cache)
    return Work(
        forward.bytes_moved + backward.bytes_moved, spared + rest, forward.flops + backward.flops
    )


def copy_of(moved: int, device: str) -> Function:
    """A copy that moves as many bytes, for scale. A multiple of 4096: odd sizes copy slower."""
    size = max(moved // 2 // 4096, 1) * 4096
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda *args: target.copy_(source)
