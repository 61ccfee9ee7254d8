"""One thing to measure: a function on fresh arguments, forward or with its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from megafuse.bench.accuracy import leaves
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.timing import cache_bytes
from megafuse.registry import Op
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
    random: bool = False
    integers_are_data: bool = False  # else they may be indices, whose order can mean something
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
) -> Job:
    """A job on an op of the registry, on arguments that the op draws."""

    def draw() -> list[Any]:
        return _wanting(op, op.sample(Draw(tuple(shape), dtype, device)), mode)

    imagined = op.sample(Draw(tuple(shape), dtype, "meta"))
    made = _job(op.reference, imagined, mode, device, contenders, draw)
    made.dtype, made.shape = str(dtype).removeprefix("torch."), tuple(shape)
    made.integers_are_data = True
    return _known(op, made, imagined)


def of_op_call(op: Op, args: Sequence[Any], mode: Mode, contenders: list[Contender]) -> Job:
    """A job on an op, on the user's arguments."""

    def draw() -> list[Any]:
        return _wanting(op, [_copied(a) for a in args], mode)

    return _known(op, _job(op.reference, args, mode, None, contenders, draw), args)


def of_function(
    function: Function, args: Sequence[Any], mode: Mode, contenders: list[Contender]
) -> Job:
    """A job on a function of the user's, on the user's arguments."""

    def draw() -> list[Any]:
        copies = pytree.tree_map(_copied, list(args))
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
    made.random = op.random
    work = made.work = _work(op, list(args), made.mode, made.device)
    made.yardsticks["copy"] = lambda: _copy(work.bytes_moved, made.device)
    return made


def _wanting(op: Op, args: Sequence[Any], mode: Mode) -> list[Any]:
    return [
        a.requires_grad_() if mode != "forward" and n.name in op.grads and _floats(a) else a
        for n, a in zip(op.arguments, args, strict=True)
    ]


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _copied(value: Any) -> Any:
    """A copy with the same strides: an expanded tensor is read from the cache, a dense one not."""
    if not isinstance(value, Tensor):
        return value
    own = _unexpanded(value.detach())
    if _overlapping(own) or own.layout != torch.strided:
        return value.detach().clone()
    made = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype, device=own.device)
    return made.copy_(own).expand(value.shape)


def _unexpanded(t: Tensor) -> Tensor:
    """The elements that are there, each once."""
    if t.layout != torch.strided:
        return t
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        if size > 1 and stride == 0:
            t = t.narrow(dim, 0, 1)
    return t


def _overlapping(t: Tensor) -> bool:
    """Whether two elements may share memory: as in windows that slide."""
    reach = 1
    for size, stride in sorted(zip(t.shape, t.stride(), strict=True), key=lambda d: d[1]):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False


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


# ---- arguments


class Arguments:
    """Several sets of arguments in turn, each with other values before it is used again."""

    SETS = 3

    def __init__(self, job: Job) -> None:
        self.sets = [job.arguments() for _ in range(self.SETS)]
        self._spare = job.arguments()
        self._turn = 0
        self._all = job.integers_are_data

    def __getitem__(self, i: int) -> list[Any]:
        return self.sets[i % self.SETS]

    def refresh(self, i: int) -> int:
        """New values at the same addresses; returns the turn that has them."""
        self._turn += 1
        self.renew(i, self._turn)
        return self._turn

    def renew(self, i: int, turn: int) -> None:
        """The values of this turn: those of the spare set, rolled so far."""
        with torch.no_grad():
            for mine, spare in zip(leaves(self[i]), leaves(self._spare), strict=True):
                if self._all or mine.is_floating_point():
                    _roll_into(mine, spare, turn)


def _roll_into(target: Tensor, source: Tensor, turn: int) -> None:
    target, source = _unexpanded(target), _unexpanded(source)
    if target.layout != torch.strided or not target.numel() or _overlapping(target):
        return
    dim = max(range(target.dim()), key=lambda d: target.shape[d], default=None)
    if dim is None:
        return
    size = target.shape[dim]
    by = (turn * 7919) % size  # a prime, so that all shifts come up
    target.narrow(dim, 0, size - by).copy_(source.narrow(dim, by, size - by))
    if by:
        target.narrow(dim, size - by, by).copy_(source.narrow(dim, 0, by))
