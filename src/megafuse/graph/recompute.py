"""What the backward may compute again: told to torch's partitioner, which cuts a joint graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from megafuse.graph import draws, hints
from megafuse.graph.one_place import without_scatters

aten = torch.ops.aten

_ACTIVATION_BACKWARDS = [
    getattr(torch.ops.aten, f"{name}_backward")
    for name in (
        *("gelu", "silu", "sigmoid", "tanh", "threshold", "leaky_relu", "softplus", "log_sigmoid"),
        *("elu", "hardswish", "hardsigmoid", "hardtanh", "mish"),
    )
]
_SOFTMAX_BACKWARDS = [aten._softmax_backward_data, aten._log_softmax_backward_data]
# What a kernel computes with its index alone, or reads at another place, and torch's partitioner
# does not know to be that cheap: what is made of these would be saved.
_OF_THE_INDEX = [
    getattr(aten, name)
    for name in (
        *("copy", "fill", "zero", "new_full", "new_ones", "new_empty", "new_empty_strided"),
        *("ones_like", "empty_strided", "empty_permuted", "eye", "tril", "floor_divide"),
        *("transpose", "diagonal", "unbind", "split_with_sizes", "flip", "roll", "repeat"),
    )
]
_OF_SIZES = [getattr(aten, f"sym_{name}") for name in ("size", "stride", "numel", "storage_offset")]
_READS_SIZES = "reads sizes for the backward"  # a key of a node's meta
_WIDE = "made of 16-bit numbers"  # likewise
_WIDE_COUNTS = 4  # times its bytes
_NEW = {aten.new_zeros.default: 0, aten.new_ones.default: 1, aten.new_full.default: None}
_CUT_FOR: ContextVar[torch.device | None] = ContextVar("where the graph will run", default=None)


@contextmanager
def cut_for(device: torch.device) -> Iterator[None]:
    """What is captured in here will run there, wherever its arguments are."""
    token = _CUT_FOR.set(device)
    try:
        yield
    finally:
        _CUT_FOR.reset(token)


def cut(
    joint: torch.fx.GraphModule, *rest: Any, **how: Any
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Forward and backward, cut where the fewest bytes are saved. Joint: both in one graph."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])  # to the partitioner a copy of its own
        joint.graph.erase_node(node)
    joint.graph.eliminate_dead_code()
    without_scatters(joint.graph, of_gradients=True)
    _make_out_of_nothing(joint.graph)
    _keep_what_is_random(joint.graph)
    if _on_gpu(joint):
        _open_softmax(joint.graph)
        _mark_wide(joint.graph)
    _keep_reductions(joint.graph)
    _compute_numbers_again(joint.graph)
    _mark_sizes(joint.graph, how["num_fwd_outputs"])
    # Of 4 times fewer bytes than its operands it takes everything to be a reduction, and saves it:
    # a mask that compares two integers, a zero that was made like a tensor.
    with _recomputable(joint), config.patch(ban_recompute_reductions=False):
        return min_cut_rematerialization_partition(joint, *rest, **how)


def _make_out_of_nothing(graph: torch.fx.Graph) -> None:
    """x.new_zeros(size) reads nothing of x: the backward makes it without x, so that nobody saves
    either of them."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _NEW:
            continue
        like, number = node.meta["val"], _NEW[node.target]
        size, value = (node.args[1], number) if number is not None else node.args[1:3]
        with graph.inserting_before(node):
            how = {"dtype": like.dtype, "device": like.device, "layout": like.layout}
            made = graph.call_function(aten.full.default, (size, value), how)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _open_softmax(graph: torch.fx.Graph) -> None:
    """A softmax in float32 of 16-bit numbers as the operations that it is: a backward then makes
    its results from those numbers and two of each row, and nobody saves them, twice the bytes.
    (The weights of a router: 272 MB forward and backward, 170 so.)"""
    for node in graph.find_nodes(op="call_function", target=aten._softmax.default):
        x, dim, to_float = node.args
        source = x.args[0] if x.target is aten._to_copy.default else x
        wide, narrow = node.meta["val"].dtype, source.meta["val"].dtype
        if not (wide == torch.float32 and narrow.is_floating_point and narrow.itemsize < 4):
            continue

        def add(target: Any, *args: Any, of: torch.fx.Node = node, **how: Any) -> torch.fx.Node:
            made = graph.call_function(target, args, how)
            known = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
            made.meta = {**of.meta, "val": target(*known, **how)}
            return made

        with graph.inserting_before(node):
            if to_float:
                x = add(aten._to_copy.default, x, dtype=wide)
            largest = add(aten.amax.default, x, [dim], True)
            power = add(aten.exp.default, add(aten.sub.Tensor, x, largest))
            total = add(aten.sum.dim_IntList, power, [dim], True)
            node.replace_all_uses_with(add(aten.div.Tensor, power, total))
        graph.erase_node(node)


def _mark_wide(graph: torch.fx.Graph) -> None:
    """What is made in float32, element by element, of one 16-bit tensor and numbers of its rows is
    saved as that tensor. To the partitioner one counts a tenth more for each operation between it
    and the backward: of BERT's loss it saved 500 MB of logarithms in place of 250 MB of logits."""
    narrow: dict[torch.fx.Node, torch.fx.Node] = {}  # what each is made of
    for node in graph.nodes:
        like = node.meta.get("val")
        if node.op != "call_function" or not isinstance(like, torch.Tensor) or like.itemsize < 4:
            continue
        if not like.dtype.is_floating_point or not (_is_pointwise(node) or _is_view(node)):
            continue
        large = [n for n in node.all_input_nodes if 2 * _elements(n) > _elements(node)]
        sources = {narrow.get(n, n if _is_narrow(n) else None) for n in large}
        if len(sources) == 1 and None not in sources:
            (narrow[node],) = sources  # type: ignore[assignment]
            node.meta[_WIDE] = True


def _elements(node: torch.fx.Node) -> int:
    like = node.meta.get("val")
    return hints.hint(like.numel()) if isinstance(like, torch.Tensor) else 0


def _is_narrow(node: torch.fx.Node) -> bool:
    like = node.meta["val"]
    return bool(like.dtype.is_floating_point and like.itemsize == 2)


def _is_view(node: torch.fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False))


def _keep_reductions(graph: torch.fx.Graph) -> None:
    """What a reduction gives is saved: to compute it again is to read all of its operand. Where a
    checkpoint asks for it to be computed again, it is."""
    for node in graph.nodes:
        if node.op != "call_function" or _is_pointwise(node) or "recompute" in node.meta:
            continue
        operands = [arg for arg in node.args if isinstance(arg, torch.fx.Node)]
        if 4 * hints.bytes_of(node) < sum(map(hints.bytes_of, operands)):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _compute_numbers_again(graph: torch.fx.Graph) -> None:
    """A tensor of one number that is made of the call's numbers alone: to save it, a kernel of its
    own would have to write it."""
    of_numbers: set[torch.fx.Node] = set()
    for node in graph.nodes:
        like = node.meta.get("val")
        is_tensor = isinstance(like, torch.Tensor) and "number" not in node.meta
        if node.op == "placeholder" and not is_tensor:
            of_numbers.add(node)
        if node.op != "call_function" or _is_random(node):
            continue
        if of_numbers.issuperset(node.all_input_nodes):
            of_numbers.add(node)
            known = getattr(node.target, "namespace", "") == "aten" and "recompute" not in node.meta
            if is_tensor and known and all(map(hints.is_one, like.shape)):
                node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE


def _is_random(node: torch.fx.Node) -> bool:
    seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return seeded or node.target is draws.ops.state.default


def _mark_sizes(graph: torch.fx.Graph, results: int) -> None:
    """Whoever reads a tensor's sizes for the backward needs none of its elements in memory. (To
    the partitioner it does: of a cast that was reshaped, it saved the cast.)"""
    outputs: Any = graph.output_node().args[0]
    forward = {node for node in outputs[:results] if isinstance(node, torch.fx.Node)}
    for node in reversed(graph.nodes):
        if node in forward:
            forward.update(node.all_input_nodes)
        elif getattr(node.target, "overloadpacket", None) in _OF_SIZES:
            node.meta[_READS_SIZES] = True


def _is_pointwise(node: torch.fx.Node) -> bool:
    casts = node.target is aten._to_copy.default
    return casts or torch.Tag.pointwise in getattr(node.target, "tags", ())


def _keep_what_is_random(graph: torch.fx.Graph) -> None:
    """A checkpoint asks for everything in it to be computed again. Of attention, and of the state
    that random numbers are drawn from, results are saved all the same: to run such an operation a
    second time, torch would save and set the generator around it."""
    for node in graph.nodes:
        if _is_random(node):
            for each in (node, *(user for user in node.users if user.target is operator.getitem)):
                each.meta.pop("recompute", None)


def _on_gpu(joint: torch.fx.GraphModule) -> bool:
    likes = (node.meta.get("val") for node in joint.graph.find_nodes(op="placeholder"))
    devices = [like.device for like in likes if isinstance(like, torch.Tensor)]
    return any(d.type == "cuda" for d in [_CUT_FOR.get(), *devices] if d is not None)


@contextmanager
def _recomputable(joint: torch.fx.GraphModule) -> Iterator[None]:
    """Lets torch's partitioner draw in the backward again, which it lets no operation do that it
    does not know. The state is not among these: it is drawn once, and saved.

    On a GPU, what an activation's backward needs may be computed again, too: to the partitioner
    that backward is a kernel of its own, for which a tanh would have to be in memory anyway. (On a
    CPU a tanh takes about as long as memory takes to keep it.)"""
    from torch._functorch import partitioners

    known, size_of = partitioners.get_default_op_list, partitioners._size_of
    on_gpu = _on_gpu(joint)

    def counted(node: torch.fx.Node) -> int:
        return int(size_of(node)) * (_WIDE_COUNTS if _WIDE in node.meta else 1)

    def with_ours() -> Any:
        types: Any = known()
        masks = (aten.nll_loss_backward, aten.nll_loss2d_backward, aten.diagonal_backward)
        types.fusible_ops.update((*masks, *_OF_THE_INDEX))
        types.recomputable_ops.update(_OF_THE_INDEX)
        if on_gpu:
            types.fusible_ops.update((*_ACTIVATION_BACKWARDS, *_SOFTMAX_BACKWARDS))
        for ours in (draws.ops.uniform, draws.ops.normal, draws.ops.dropout):
            types.recomputable_ops.add(ours)
            types.fusible_ops.add(ours)
        fuses = types.is_fusible
        types.is_fusible = lambda node: _READS_SIZES in node.meta or fuses(node)
        return types

    partitioners.get_default_op_list, partitioners._size_of = with_ours, counted
    try:
        yield
    finally:
        partitioners.get_default_op_list, partitioners._size_of = known, size_of
