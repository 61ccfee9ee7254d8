"""Arguments of a graph that are neither tensors nor numbers, and that it hands back as they are.

DTensors bring them: since torch 2.13 their mesh is an argument of each graph that they are taken
apart in, and a result of each that makes one. No operation reads it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[list[Any]], Sequence[Any]]


class Objects:
    """`traced` is the graph without them, `around` puts them back. `places` are theirs among the
    arguments, `results` says which of them each such result is."""

    def __init__(self, traced: torch.fx.GraphModule) -> None:
        self.traced = traced
        placeholders = traced.graph.find_nodes(op="placeholder")
        outputs: Any = traced.graph.output_node().args[0]
        held = [node for node in placeholders if _is_handed_on(node)]
        self.places = [placeholders.index(node) for node in held]
        self.results = {at: held.index(out) for at, out in enumerate(outputs) if out in held}
        if held:
            self.traced = _without({node.name for node in held}, traced)

    def around(self, call: Call) -> Call:
        """A call of the whole graph, from one of the graph without them."""
        if not self.places:
            return call

        def whole(args: list[Any]) -> Sequence[Any]:
            held = [args[place] for place in self.places]
            left = [arg for place, arg in enumerate(args) if place not in self.places]
            args.clear()  # who is read for the last time is freed then
            results = list(call(left))
            for place, which in self.results.items():
                results[place] = held[which]
            return results

        return whole


def _is_handed_on(node: torch.fx.Node) -> bool:
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
    return not isinstance(node.meta.get("val"), kinds) and all(
        user.op == "output" for user in node.users
    )


def _without(names: set[str], traced: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy that does not take them, and returns None in their places."""
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    outputs: Any = graph.graph_copy(traced.graph, known)
    old = traced.graph.output_node()
    graph.output(tuple(None if _named(each, names) else each for each in outputs)).meta.update(
        old.meta
    )
    for node in [node for node in graph.nodes if _named(node, names)]:
        graph.erase_node(node)
    return torch.fx.GraphModule(traced, graph)


def _named(node: Any, names: set[str]) -> bool:
    return isinstance(node, torch.fx.Node) and node.op == "placeholder" and node.name in names
