"""What an op is, as data: `Op`, and `OPS`, the one list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megafuse.codegen.variant import Functors
from megafuse.registry import arguments
from megafuse.registry.arguments import Argument
from megafuse.registry.cost import Cost
from megafuse.registry.sample import Sampler


def nothing_kept(*args: Any) -> Sequence[Tensor]:
    """`Op.kept` where there is nothing that only the backward reads."""
    return []


@dataclass
class Op:
    """One op. `declaration.op`, which makes it, says what the fields mean."""

    name: str
    family: str
    program: str
    reference: Callable[..., Any]
    functors: Functors | None
    arguments: list[Argument]
    returns: tuple[str, ...]
    keeps: tuple[str, ...]
    kept: Callable[..., Sequence[Tensor]]
    sample: Sampler
    flops: tuple[int, int] | Callable[..., tuple[int, int]]
    launches: tuple[int, int] | Callable[..., tuple[int, int]] | None
    unread: Callable[..., tuple[int, int]] | None
    saves: tuple[str, ...]
    grads: dict[str, int]
    passthrough: tuple[str, ...]
    output_dtype: str | None
    dtype_like: str | None
    inverted: str | None
    random: bool
    autocast: str | None
    laid_out_as: str | None
    vjp: Callable[..., Sequence[Tensor | None]] | None
    further_check: Callable[..., str | None] | None
    fused: Callable[..., Any] = field(init=False)
    handed_over: bool = field(init=False, default=False)  # to the host runtime (activation.py)
    _namespace: dict[str, Any] = field(init=False)  # the globals of `fused` (call.py)

    @property
    def differentiable(self) -> bool:
        return bool(self.grads)

    @property
    def pointwise(self) -> bool:
        return self.family == "pointwise"

    @property
    def outputs(self) -> int:
        """How many tensors a call returns."""
        return len(self.returns)

    @property
    def tensors(self) -> list[str]:
        """Names of the arguments that may be tensors, in the functor's order."""
        return [a.name for a in self.arguments if a.is_tensor]

    @property
    def schema(self) -> str:
        """The op's declaration for PyTorch's dispatcher.

        After what users see come kept results (empty unless `keep`), and a random state.
        """
        results = self.outputs + len(self.keeps) + self.random
        returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        listed = [a.schema for a in self.arguments] + ["bool keep=False"] * bool(self.keeps)
        return f"{self.name}({', '.join(listed)}) -> {returns}"

    @property
    def overload(self) -> Any:
        """The op as the dispatcher knows it."""
        return getattr(torch.ops.megafuse, self.name).default

    def laid_out(self, results: Sequence[Tensor], args: Sequence[Any]) -> list[Tensor]:
        """The reference's outputs with the strides that the fused op's have."""
        if self.pointwise:
            return list(results)
        if self.laid_out_as is None:
            return [t.contiguous() for t in results]
        like = args[self.position(self.laid_out_as)]
        return [torch.empty_like(like, dtype=t.dtype).copy_(t) for t in results]

    def position(self, name: str) -> int:
        return [a.name for a in self.arguments].index(name)

    def listed(self, results: Any) -> list[Tensor]:
        """What a call returned, one tensor or several, as a list."""
        return [results] if self.outputs == 1 else list(results)

    def draws(self, values: dict[str, Any]) -> bool:
        """Whether a call with these arguments depends on random numbers."""
        return self.random and values["training"] and values["p"] > 0

    def check(self, *args: Any) -> None:
        """Raises a TypeError or ValueError that says what is wrong with `args`, if anything."""
        arguments.check(self.name, self.arguments, args, self.pointwise, self.further_check)

    def cost(self, *args: Any) -> Cost:
        """The least a forward call must do."""
        return Cost.of_forward(self, args)

    def backward_cost(self, *args: Any) -> Cost:
        """The least a backward call must do when every argument wants its gradient."""
        return Cost.of_backward(self, args)


OPS: dict[str, Op] = {}
