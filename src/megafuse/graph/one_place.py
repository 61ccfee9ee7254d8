"""A scatter of one element along a dimension is a choice: where(coordinate == index, source, x).

So the gradient of a gather, of a maximum or of a median of each row, which is 0 but for one place
of the row, is part of the kernel that goes on with it. Otherwise a row of zeros is written, then
scattered into, then read again. (Of 16 Mi bfloat16 logits, for the gradient of a loss with label
smoothing: 64 MB three times, beside the 32 MB that are read and the 32 MB that are written.)

PyTorch raises for an index that is out of bounds, and a comparison does not. So this is done only
where the index cannot be: it was given before to a gather from a dimension of this size, which
raises, or a reduction of such a dimension has found it.
"""

from __future__ import annotations

import operator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten
_SCATTERS = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
# What finds a place along a dimension, its second argument: as its result, or as its second.
_FIND = (aten.argmax.default, aten.argmin.default)
_FIND_BESIDES = (
    *(aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim),
    *(aten.mode.default, aten.kthvalue.default, aten.topk.default),
)
_SAME = (  # as many numbers, and the same
    *(aten.detach.default, aten.alias.default, aten.clone.default, aten.view.default),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims),
)


def without_scatters(graph: Graph, of_gradients: bool = False) -> None:
    """Changes those of a traced graph that are choices. `of_gradients`: of forward and backward in
    one graph, only those in the backward. A scatter in the forward must not rely on a gather that
    may be left to the backward, as its own gradient is; it has another chance in a graph without.
    """
    calls = (graph.find_nodes(op="call_function", target=target) for target in _SCATTERS)
    scatters = {node for found in calls for node in found}
    if of_gradients and scatters:
        scatters &= _gradients(graph)
    if not scatters:
        return
    known: dict[Node, list[Any]] = {}  # for each index, the sizes that its numbers are below
    for node in list(graph.nodes):
        if node in scatters and _has_one_place(node) and _is_within(node, known):
            _choose(graph, node)
        elif node.op == "call_function":
            _note_bounds(node, known)


def _gradients(graph: Graph) -> set[Node]:
    """What is made from the gradients of the results."""
    found: set[Node] = set()
    for node in graph.nodes:
        taken = node.op == "placeholder" and "tangents" in str(node.target)
        if taken or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _is_within(node: Node, known: dict[Node, list[Any]]) -> bool:
    size = _like(node).shape[_dim(node)]
    sizes = known.get(_numbers(node.args[2]), ())
    return any(statically_known_true(each == size) for each in sizes)


def _note_bounds(node: Node, known: dict[Node, list[Any]]) -> None:
    if node.target is aten.gather.default:
        source, dim, index = node.args[:3]
        _note(known, _numbers(index), source, dim)
    elif node.target in _FIND and len(node.args) > 1 and node.args[1] is not None:
        _note(known, node, node.args[0], node.args[1])
    elif node.target is operator.getitem:
        _note_second(known, node)


def _note_second(known: dict[Node, list[Any]], node: Node) -> None:
    call: Any = node.args[0]
    if call.target in _FIND_BESIDES and node.args[1] == 1:
        names = [argument.name for argument in call.target._schema.arguments]
        dim = dict(zip(names, call.args, strict=False)).get("dim", -1)
        _note(known, node, call.args[0], dim)


def _note(known: dict[Node, list[Any]], index: Node, source: Any, dim: Any) -> None:
    shape = source.meta["val"].shape
    known.setdefault(index, []).append(shape[dim] if len(shape) else 1)


def _numbers(index: Any) -> Node:
    """The node that has the same numbers, whatever their shape."""
    while index.target in _SAME:
        index = index.args[0]
    found: Node = index
    return found


def _like(node: Node) -> torch.Tensor:
    made: torch.Tensor = node.meta["val"]
    return made


def _dim(node: Node) -> int:
    dim: Any = node.args[1]
    return int(dim) % max(_like(node).dim(), 1)


def _has_one_place(node: Node) -> bool:
    """Whether one element of each row along its dimension is set, of all rows, and from as many."""
    x, _, index, source = node.args
    shape, dim = _like(node).shape, _dim(node)
    if not shape or not isinstance(x, Node) or not isinstance(index, Node):
        return False
    one = tuple(1 if d == dim else n for d, n in enumerate(shape))
    of_index = index.meta["val"].shape
    of_source = source.meta["val"].shape if isinstance(source, Node) else of_index
    return all(
        len(each) == len(one)
        and all(statically_known_true(a == b) for a, b in zip(each, one, strict=True))
        for each in (of_index, of_source)
    )


def _choose(graph: Graph, node: Node) -> None:
    x, _, index, source = node.args
    like, dim = _like(node), _dim(node)

    def call(target: Any, *args: Any, **how: Any) -> Node:
        made = graph.call_function(target, args, how)
        made.meta = {**node.meta, "val": target(*_values(args), **how)}
        return made

    with graph.inserting_before(node), _faked(like):
        size = like.shape[dim]
        if isinstance(size, torch.SymInt):
            size = call(aten.sym_size.int, x, dim)
        place = call(aten.arange.default, size, dtype=torch.int64, device=like.device)
        for _ in range(like.dim() - dim - 1):
            place = call(aten.unsqueeze.default, place, -1)
        here = call(aten.eq.Tensor, place, index)
        if not isinstance(source, Node) or not isinstance(source.meta["val"], torch.Tensor):
            source = call(aten.full.default, [], source, dtype=like.dtype, device=like.device)
        elif node.target is aten.scatter_add.default and not _is_zero(x):
            source = call(aten.add.Tensor, x, source)
        made = graph.call_function(aten.where.self, (here, source, x))
        made.meta = dict(node.meta)  # lies where the scatter's result does
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _faked(like: torch.Tensor) -> AbstractContextManager[Any]:
    """Where what is made is a stand-in, too."""
    mode: AbstractContextManager[Any] = getattr(like, "fake_mode", None) or nullcontext()
    return mode


def _values(args: Any) -> Any:
    return torch.fx.map_arg(args, lambda node: node.meta["val"])


def _is_zero(x: Any) -> bool:
    """−0 is one as well: 0 − 0 would be 0, but nobody asks a gradient for the sign of a zero."""
    if x.target in (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default):
        return True
    filled = (aten.full.default, aten.full_like.default)
    return x.target in filled and type(x.args[1]) in (int, float) and x.args[1] == 0
