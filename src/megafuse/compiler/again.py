"""Gradients through the function itself, which PyTorch can differentiate again.

The fused backward is a program, not a graph. So a second derivative (create_graph=True), or a
gradient under vmap, runs the function once more as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from megafuse.graph import draws
from megafuse.graph.capture import Captured


@dataclass(frozen=True)
class Again:
    """Called by the host runtime (runtime/host/graph/again.h)."""

    function: Callable[..., Any]
    captured: Captured

    def __call__(
        self, given: Sequence[Any], incoming: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """The arguments' gradients; `incoming` are those of the results that have one."""
        leaves = [argument.value for argument in self.captured.arguments]
        for place, leaf in zip(self.captured.placeholders(), given, strict=True):
            leaves[place] = leaf
        chosen = [p for p, want in zip(self.captured.gradients, wanted, strict=True) if want]
        ends = [
            result
            for result, gradient in zip(self.captured.differentiable, incoming, strict=True)
            if gradient is not None
        ]

        def results(*values: Tensor) -> list[Tensor]:
            mine = list(leaves)
            for place, value in zip(chosen, values, strict=True):
                mine[place] = value
            args, kwargs = pytree.tree_unflatten(mine, self.captured.spec)
            returned = pytree.tree_leaves(self.function(*args, **kwargs))
            return [returned[self._place(end)] for end in ends]

        # torch.func, since torch.autograd finds no graph inside a vmap.
        with torch.enable_grad(), torch.autocast(self._device, enabled=False):
            pull = torch.func.vjp(results, *(leaves[place] for place in chosen))[1]
            found = dict(zip(chosen, pull([g for g in incoming if g is not None]), strict=True))
        return [found.get(place) for place in self.captured.gradients]

    def _place(self, result: int) -> int:
        """Where among the returned leaves a result is."""
        kinds = [(returned.kind, returned.value) for returned in self.captured.returned]
        return kinds.index(("tensor", result))

    @property
    def _device(self) -> str:
        tensors = (a.value for a in self.captured.arguments if a.kind == "tensor")
        return str(next(tensors).device.type)


def why_once(captured: Captured) -> str:
    """Why the function cannot be run again for its gradients; empty where it can."""
    if captured.writes:
        return "writes to its arguments: it has no second derivative."
    for part in (captured.forward, captured.backward):
        for node in part.graph.nodes if part is not None else ():
            tags = getattr(node.target, "tags", ())
            drawn = node.target is draws.ops.state.default
            if drawn or torch.Tag.nondeterministic_seeded in tags:
                return (
                    "draws random numbers, which would be others if it ran again: it has no second "
                    "derivative. Call its `.function`, which is not fused."
                )
    return ""


def kept(captured: Captured) -> list[int]:
    """Of each argument of the forward graph, which saved value it is; −1 where it is none."""
    outputs: Any = captured.forward.graph.output_node().args[0]
    saved = list(outputs)[len(outputs) - captured.saved :] if captured.saved else []
    inputs = captured.forward.graph.find_nodes(op="placeholder")
    return [saved.index(node) if node in saved else -1 for node in inputs]
