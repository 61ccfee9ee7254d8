"""One thing to measure: a function on fresh arguments, forward or with its backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from megafuse.bench.accuracy import leaves
from megafuse.bench.arguments import copied
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.result import Choice
from megafuse.bench.timing import cache_bytes
from megafuse.registry import Op
from megafuse.registry.arguments import Argument
from megafuse.registry.cost import results
from megafuse.registry.sample import Draw

Mode = Literal["forward", "forward, grad", "forward+backward"]
YARDSTICKS = {"copy": "a copy of as many bytes, for scale", "bare": "one allocation, one launch"}
MODES: tuple[Mode, ...] = ("forward", "forward, grad", "forward+backward")


@dataclass(frozen=True)
class Work:
    """The least that must be done: bytes moved and, of them, those that no cache can spare."""

    bytes_moved: int
    bytes_from_memory: int
    flops: int


@dataclass
class Job:
    """What is measured, on whom, and how fresh arguments are drawn."""

    name: str
    mode: Mode
    device: str
    reference: Function
    contenders: list[Contender]
    draw: Callable[[], list[Any]]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()  # of a layer: its hidden features, its output's
    choices: dict[str, Choice] = field(default_factory=dict)  # arguments that set it apart
    random: bool = False
    multiplies: bool = False  # matrices: its arithmetic is that of a matrix product
    integers_are_data: bool = False  # else they may be indices, whose order can mean something
    weights: frozenset[int] = frozenset()  # arguments that a model keeps from call to call
    work: Work | None = None
    yardsticks: dict[str, Callable[[], Function]] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return int(torch.Size(self.shape).numel())

    def step(self, function: Function) -> Function:
        """The function as this mode calls it: its result, and the gradients if there are any."""
        if self.mode != "forward+backward":
            return function
        weights = function.parameters() if isinstance(function, nn.Module) else ()
        extra = [w for w in weights if w.requires_grad]

        def forward_backward(*args: Any) -> Any:
            *given, grads = args
            out = function(*given)
            wanted = [a for a in given if isinstance(a, Tensor) and a.requires_grad] + extra
            outs = [t for t in leaves(out) if t.requires_grad]
            gradients = torch.autograd.grad(outs, wanted, grads, allow_unused=True)
            return out, gradients

        return forward_backward

    def arguments(self) -> list[Any]:
        """Fresh ones; with the incoming gradients as the last where the mode takes them."""
        args = self.draw()
        if self.mode != "forward+backward":
            return args
        outs = [t.detach() for t in leaves(self.reference(*args)) if t.requires_grad]
        if not outs:
            raise ValueError(f"{self.name} has no gradient: only `forward` can be measured")
        return [*args, [torch.randn_like(t) for t in outs]]


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
    made = _job(op.reference, imagined, mode, device, contenders, draw)
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

    made = _known(op, _job(op.reference, args, mode, None, contenders, draw), args)
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


def of_function(
    function: Function, args: Sequence[Any], mode: Mode, contenders: list[Contender]
) -> Job:
    """A job on a function of the user's, on the user's arguments."""

    def draw() -> list[Any]:
        copies = pytree.tree_map(copied, list(args))
        for t in leaves(copies):
            t.requires_grad_(mode != "forward" and t.is_floating_point())
        return list(copies)

    return _job(function, args, mode, None, contenders, draw)


def _job(
    reference: Function,
    args: Sequence[Any],
    mode: Mode,
    device: str | None,
    contenders: list[Contender],
    draw: Callable[[], list[Any]],
) -> Job:
    tensors = leaves(list(args))
    if not tensors:
        raise ValueError("bench: there is no tensor among the arguments to measure on")
    largest = max(tensors, key=lambda t: t.numel())
    return Job(
        name=str(getattr(reference, "__name__", type(reference).__name__)),
        mode=mode,
        device=device or largest.device.type,
        reference=reference,
        contenders=contenders,
        draw=draw,
        dtype=str(largest.dtype).removeprefix("torch."),
        shape=tuple(largest.shape),
    )


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
    made.yardsticks["copy"] = lambda: _copy(work.bytes_moved, made.device)
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
    return [
        a.requires_grad_() if mode != "forward" and n.name in op.grads and _floats(a) else a
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


def _copy(moved: int, device: str) -> Function:
    """A copy that moves as many bytes, for scale. A multiple of 4096: odd sizes copy slower."""
    size = max(moved // 2 // 4096, 1) * 4096
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda *args: target.copy_(source)
