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
from megafuse.registry.autograd import Autograd
from megafuse.registry.cost import Cost, Pair
from megafuse.registry.kernel import Kernel, Pointwise, Program
from megafuse.registry.sample import Sampler
from megafuse.registry.sharding import Sharding
from megafuse.registry.signature import Signature


@dataclass
class Op:
    """One op, in the parts it was declared in (declaration.py)."""

    name: str
    reference: Callable[..., Any]
    arguments: list[Argument]
    signature: Signature
    kernel: Kernel
    functors: Functors | None  # the kernel's, unless it is a program
    autograd: Autograd
    flops: Pair
    launches: Pair | None
    unread: Callable[..., tuple[int, int]] | None
    sample: Sampler
    sharding: Sharding
    fused: Callable[..., Any] = field(init=False)
    handed_over: bool = field(init=False, default=False)  # to the host runtime (activation.py)
    _namespace: dict[str, Any] = field(init=False)  # the globals of `fused` (call.py)

    @property
    def family(self) -> str:
        """pointwise, rows or composite"""
        return self.kernel.family

    @property
    def program(self) -> str:
        """What the host runtime runs: the family's program, or a composite's own."""
        return (self.kernel.name or self.name) if isinstance(self.kernel, Program) else self.family

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return self.kernel.random

    @property
    def inverted(self) -> str | None:
        """The argument that a CUDA kernel gets as its reciprocal, where it is a number."""
        return self.kernel.inverted if isinstance(self.kernel, Pointwise) else None

    @property
    def differentiable(self) -> bool:
        return bool(self.autograd.grads)

    @property
    def pointwise(self) -> bool:
        return self.family == "pointwise"

    @property
    def outputs(self) -> int:
        """How many tensors a call returns."""
        return len(self.signature.returns)

    @property
    def tensors(self) -> list[str]:
        """Names of the arguments that may be tensors, in the functor's order."""
        return [a.name for a in self.arguments if a.is_tensor]

    @property
    def schema(self) -> str:
        """The op's declaration for PyTorch's dispatcher.

        After what users see come kept results (empty unless `keep`), and a random state.
        """
        kept = len(self.autograd.keeps)
        results = self.outputs + kept + self.random
        returns = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
        listed = [a.schema for a in self.arguments] + ["bool keep=False"] * bool(kept)
        return f"{self.name}({', '.join(listed)}) -> {returns}"

    @property
    def overload(self) -> Any:
        """The op as the dispatcher knows it."""
        return getattr(torch.ops.megafuse, self.name).default

    def laid_out(self, results: Sequence[Tensor], args: Sequence[Any]) -> list[Tensor]:
        """The reference's outputs with the strides that the fused op's have."""
        if self.pointwise:
            return list(results)
        if self.signature.laid_out_as is None:
            return [t.contiguous() for t in results]
        like = args[self.position(self.signature.laid_out_as)]
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
        arguments.check(self.name, self.arguments, args, self.pointwise, self.signature.check)

    def cost(self, *args: Any) -> Cost:
        """The least a forward call must do."""
        return Cost.of_forward(self, args)

    def backward_cost(self, *args: Any) -> Cost:
        """The least a backward call must do when every argument wants its gradient."""
        return Cost.of_backward(self, args)


OPS: dict[str, Op] = {}
