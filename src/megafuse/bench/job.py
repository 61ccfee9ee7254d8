"""One thing to measure: a function on fresh arguments, forward or with its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from megafuse.bench.accuracy import leaves
from megafuse.bench.arguments import copied
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.result import Choice

Mode = Literal["forward", "forward, grad", "forward+backward"]
YARDSTICKS = {
    "copy": "a copy of as many bytes, for scale",
    "bare": "one allocation, one launch",
    "built-in": "megafuse.gelu_scale at 1 Ki elements: what a call of an op costs",
}
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
    # Arguments of another shape; where they are given, first calls are timed, from cold caches.
    draw_another: Callable[[], list[Any]] | None = None
    remarks: Callable[[], list[str]] = list  # about the row, once it has run

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
        return self.with_gradients(self.draw())

    def with_gradients(self, args: list[Any]) -> list[Any]:
        if self.mode != "forward+backward":
            return args
        outs = [t.detach() for t in leaves(self.reference(*args)) if t.requires_grad]
        if not outs:
            raise ValueError(f"{self.name} has no gradient: only `forward` can be measured")
        return [*args, [torch.randn_like(t) for t in outs]]


def of_function(
    function: Function, args: Sequence[Any], mode: Mode, contenders: list[Contender]
) -> Job:
    """A job on a function of the user's, on the user's arguments."""

    def draw() -> list[Any]:
        copies = pytree.tree_map(copied, list(args))
        for t in leaves(copies):
            t.requires_grad_(mode != "forward" and t.is_floating_point())
        return list(copies)

    return job_on(function, args, mode, None, contenders, draw)


def job_on(
    reference: Function,
    args: Sequence[Any],
    mode: Mode,
    device: str | None,
    contenders: list[Contender],
    draw: Callable[[], list[Any]],
) -> Job:
    """A job on these arguments; its dtype and shape are those of the largest."""
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
