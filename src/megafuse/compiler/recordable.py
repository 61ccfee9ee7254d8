"""What of AOTAutograd's graphs can be recorded, and what its arguments and outputs are for."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from megafuse.compiler.replayed import MOST, Role

DEVICES = ("cuda",)  # that something can record for
_FEWEST_STEPS = 3  # a replay is a launch, and copies are another two
_KNOWN = ("aten", "prims", "megafuse", "megafuse_graph")  # operations that are kernels and no more


def most(graphs: Any) -> int:
    """How many recordings a program may have: the option `graphs`, checked. 0: none."""
    if isinstance(graphs, bool):
        return MOST if graphs else 0
    if isinstance(graphs, int) and graphs > 0:
        return graphs
    raise ValueError(
        f"graphs is True, False, or the most CUDA graphs of a program ({MOST}), not {graphs!r}"
    )


def why_not(traced: torch.fx.GraphModule, device: torch.device, steps: int) -> str:
    """Why a program of this graph is not recorded; empty if it can be."""
    if device.type not in DEVICES:
        return f"it runs on the {device.type.upper()}: only CUDA has such graphs"
    if steps < _FEWEST_STEPS:
        return f"it has {steps} step{'s' if steps != 1 else ''}, which a replay would not shorten"
    for node in traced.graph.nodes:
        why = _why_not_operation(node)
        if why:
            return why
    outputs: Any = traced.graph.output_node().args[0]
    for output in outputs:
        value = output.meta.get("val") if isinstance(output, torch.fx.Node) else None
        if isinstance(value, torch.Tensor) and not _is_on(output, value, device):
            return f"{output.name} is on {value.device}"
    return ""


def role(traced: torch.fx.GraphModule, name: str) -> Role | None:
    """None where torch does not say which outputs are the model's."""
    if name == "backward":
        return Role(range(0), saved=_saved(traced))
    context = torch._guards.TracingContext.try_get()
    about: Any = context and context.fw_metadata
    if about is None:
        return None
    return Role(
        range(about.num_mutated_inp_runtime_indices, about.num_forward), saves=name == "forward"
    )


def _why_not_operation(node: torch.fx.Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OperatorBase):
        return ""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _KNOWN:
        return f"nobody knows what {target} does besides launching kernels"
    if torch.Tag.data_dependent_output in target.tags or _depends_on_data(node):
        return f"the host waits for what {target} finds"
    if "attention" in target.name() and _argument(node, "dropout_p"):
        return f"{target} keeps the state of its random numbers on the host"
    return ""


def _depends_on_data(node: torch.fx.Node) -> bool:
    """Whether there is a size in it that only running it tells. (The tag dynamic_output_shape is
    also on x[indices], which has such a size only where indices are a mask.)"""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return any(free_unbacked_symbols(leaf) for leaf in leaves if leaf is not None)


def _argument(node: torch.fx.Node, name: str) -> Any:
    target: Any = node.target
    for at, argument in enumerate(target._schema.arguments):
        if argument.name == name:
            given = node.args[at] if at < len(node.args) else node.kwargs.get(name)
            return argument.default_value if given is None else given
    return None


def _is_on(node: torch.fx.Node, value: torch.Tensor, device: torch.device) -> bool:
    """The state of attention's random numbers is on the host only while nobody records."""
    of_attention = node.args and "attention" in str(getattr(node.args[0], "target", ""))
    return value.device.type == device.type or bool(of_attention and not value.is_floating_point())


def _saved(traced: torch.fx.GraphModule) -> tuple[int, ...]:
    """What the forward pass computed, by the names that torch's partitioner gives arguments."""
    return tuple(
        at
        for at, node in enumerate(traced.graph.find_nodes(op="placeholder"))
        if isinstance(node.meta["val"], torch.Tensor)
        and not node.name.startswith(("primals", "tangents"))
    )
