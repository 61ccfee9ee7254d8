"""Sizes that the backward needs and that nothing it takes shows: the forward saves them as numbers.

torch's partitioner saves the sizes that the backward graph computes with. Ours are written into
shapes as well: the gradient of a slice has its argument's size, which the result does not show.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree


def save_sizes(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
    """Adds what is missing to the forward's results and to what the backward takes."""
    needed: set[sympy.Symbol] = set()
    for node in backward.graph.nodes:
        for size in _sizes(node):
            needed |= size.node.expr.free_symbols
    taken = backward.graph.find_nodes(op="placeholder")
    shown = {size.node.expr for node in taken for size in _sizes(node, walked=True)}
    for symbol in sorted(needed - shown, key=str):
        _save(symbol, forward, backward)
    forward.recompile()
    backward.recompile()


def _save(
    symbol: sympy.Symbol, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule
) -> None:
    for node in forward.graph.find_nodes(op="placeholder"):
        shape = getattr(node.meta.get("val"), "shape", ())
        for dim, size in enumerate(shape):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                output = forward.graph.output_node()
                with forward.graph.inserting_before(output):
                    made = forward.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                made.meta["val"] = size
                results: Any = output.args[0]
                output.args = ((*results, made),)
                _take(made.name, size, backward)
                return


def _take(name: str, size: torch.SymInt, backward: torch.fx.GraphModule) -> None:
    """A further placeholder, after the others."""
    last = backward.graph.find_nodes(op="placeholder")[-1]
    with backward.graph.inserting_after(last):
        made = backward.graph.placeholder(name)
    made.target = made.name = name
    made.meta["val"] = size


def _sizes(node: torch.fx.Node, walked: bool = False) -> list[torch.SymInt]:
    """Where `walked`, without strides of dimensions of size 1: a gradient may come with any."""
    found: list[Any] = []
    for leaf in pytree.tree_leaves(node.meta.get("val")):
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        strides = zip(leaf.shape, leaf.stride(), strict=True)
        found += leaf.shape
        found += [stride for size, stride in strides if not (walked and _is_one(size))]
    return [size for size in found if isinstance(size, torch.SymInt)]


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1
