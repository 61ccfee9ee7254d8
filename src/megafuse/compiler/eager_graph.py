"""What a captured graph costs unfused, and each module in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from megafuse.compiler.eager import Counting, Traffic, backward_of
from megafuse.compiler.recorded import Recorded


@dataclass
class Unfused:
    """PyTorch's own operations for a graph; `modules`: how many of the forward's are in each."""

    forward: Traffic | None = None
    backward: Traffic | None = None
    modules: Counter[str] = field(default_factory=Counter)


def unfused(graph: Recorded) -> Unfused:
    """Counted on tensors without memory, of the sizes that the graph was captured with."""
    try:
        with (
            _disable_current_modes(),
            FakeTensorMode(allow_non_fake_inputs=True),
            graph.surroundings(),
        ):
            given = [_made(node) for node in graph.module.graph.find_nodes(op="placeholder")]
            with Counting() as counting:
                run = _ByModule(graph, counting)
                returned = run.run(*given)
            return Unfused(counting.traffic, backward_of(returned, given), run.modules)
    except Exception:  # an operation that knows no such tensors: then there is nothing to tell
        return Unfused()


class _ByModule(torch.fx.Interpreter):
    def __init__(self, graph: Recorded, counting: Counting) -> None:
        super().__init__(graph.module)
        self.traffic, self.paths = counting.traffic, graph.paths
        self.modules: Counter[str] = Counter()

    def run_node(self, n: torch.fx.Node) -> Any:
        before = self.traffic.launches
        result = super().run_node(n)
        stack = n.meta.get("nn_module_stack")
        theirs = list(stack.values())[-1][0] if stack else ""
        self.modules[self.paths.get(theirs, theirs)] += self.traffic.launches - before
        return result


def _made(node: torch.fx.Node) -> Any:
    """A tensor like the placeholder's, of plain sizes."""
    like = node.meta["example_value"]
    if isinstance(like, (torch.SymInt, torch.SymFloat)):
        return like.node.hint
    if not isinstance(like, torch.Tensor):
        return like
    sizes, strides = ([_hint(n) for n in each] for each in (like.shape, like.stride()))
    made = torch.empty_strided(sizes, strides, dtype=like.dtype, device=like.device)
    return made.requires_grad_(like.requires_grad and torch.is_grad_enabled())


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
