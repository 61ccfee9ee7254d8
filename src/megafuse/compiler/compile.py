"""A function and example arguments → a variant that the host runtime can call.

capture (torch's tracer) → lower (IR) → clean → partition (kernels) → program (data for C++)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from megafuse.compiler.again import Again, kept, why_once
from megafuse.compiler.besides import besides
from megafuse.compiler.fused import Rounding
from megafuse.compiler.labels import name_inputs
from megafuse.compiler.uncollected import uncollected
from megafuse.graph.capture import Captured, capture
from megafuse.graph.clean import clean
from megafuse.graph.errors import Untraceable
from megafuse.graph.ir import Graph
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.one_place import without_scatters
from megafuse.graph.partition import partition
from megafuse.graph.patterns import matched
from megafuse.graph.plan import Call, Plan
from megafuse.graph.program import describe
from megafuse.graph.recompute import cut_for
from megafuse.runtime import loader


class NotFused(Exception):
    """The function runs as it is: why."""


class OurMistake(NotFused):
    """The same, because of a mistake of ours: tests should see it."""


@dataclass(frozen=True)
class Compiled:
    """One capture on its way to the host: what explain and source tell of."""

    captured: Captured
    forward: tuple[Graph, Plan]
    backward: tuple[Graph, Plan] | None
    description: dict[str, Any]

    @property
    def library(self) -> list[str]:
        """What is left to the library: the operations, forward and backward."""
        plans = [self.forward[1], *([self.backward[1]] if self.backward else [])]
        return [str(s.target) for plan in plans for s in plan.steps if isinstance(s, Call)]


def compiled(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rounding: Rounding,
    device: torch.device | None = None,
    dynamic: bool = True,
) -> Compiled:
    """Raises CaptureError where the function cannot be traced, NotFused where it should not be.

    `device` is the arguments' own, unless it is said: kernels can be looked at without a GPU.
    """
    name = getattr(function, "__name__", "function").strip("<>")
    device = device or only_device(pytree.tree_leaves((tuple(args), dict(kwargs))))
    try:
        with cut_for(device), uncollected():
            captured = capture(function, args, kwargs, decompositions(), dynamic)
    except (Untraceable, NotImplementedError) as error:  # the latter is torch's tracer's own
        raise NotFused(str(error)) from error
    made = planned(captured, name, device, rounding)
    made.description.update(_around(function, captured))
    return made


@uncollected()
def planned(captured: Captured, name: str, device: torch.device, rounding: Rounding) -> Compiled:
    """From the traced graphs on. Raises NotFused where they should run as they are."""
    try:
        without_scatters(captured.forward.graph)
        widens = _widened_products(device)
        find = functools.partial(matched, device=_kind(device), rounds=rounding == "eager")
        graph = find(clean(lower(captured, "forward", widens=widens)))
        forward = graph, _planned(graph, captured.forward, name, device, rounding)
        backward = None
        if captured.backward is not None:
            gradient = find(clean(lower(captured, "backward", widens=widens)))
            name_inputs(gradient, graph, captured)
            plan = _planned(gradient, captured.backward, f"{name}_backward", device, rounding)
            backward = gradient, plan
        description = _described(captured, forward, backward, device, name)
    except NotImplementedError as error:
        raise NotFused(str(error)) from error
    except Exception as error:  # a mistake of ours must not keep the function from running
        words = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise OurMistake(f"{words}; please report this") from error
    return Compiled(captured, forward, backward, description)


def only_device(leaves: Iterable[Any]) -> torch.device:
    """That of all tensors among these. Raises NotFused where there are several, or none."""
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
    if len(devices) != 1:
        there = ", ".join(sorted(map(str, devices))) or "none"
        raise NotFused(f"its tensors must be on one device; they are on: {there}")
    (device,) = devices
    if device.type not in ("cpu", "cuda"):
        raise NotFused(f"kernels are for CPU and CUDA tensors, and these are on {device}")
    return device


def _widened_products(device: torch.device) -> list[torch.dtype]:
    """The 16-bit floats that this CPU has no instructions for."""
    host = loader.load() if device.type == "cpu" else None
    if host is None:
        return []
    halves = (torch.float16, torch.bfloat16)
    return [dtype for dtype in halves if not host.library_multiplies(dtype)]


def _planned(
    graph: Graph,
    traced: torch.fx.GraphModule,
    name: str,
    device: torch.device,
    rounding: Rounding,
) -> Plan:
    return partition(graph, name, _kind(device), _copies(traced), rounds=rounding == "eager")


def _kind(device: torch.device) -> Literal["cpu", "cuda"]:
    return "cuda" if device.type == "cuda" else "cpu"


def _copies(traced: torch.fx.GraphModule) -> list[int]:
    """The outputs that are memory of their own: not an argument, nor a view of one."""
    outputs: Any = traced.graph.output_node().args[0]
    return [i for i, output in enumerate(outputs) if not _is_view_of_argument(output)]


def _is_view_of_argument(node: Any) -> bool:
    while isinstance(node, torch.fx.Node):
        if node.op == "placeholder":
            return True
        if node.target is operator.getitem:  # of split, unbind, …
            node = node.args[0]
            continue
        schema = getattr(node.target, "_schema", None)
        alias = schema and schema.arguments and schema.arguments[0].alias_info
        if not alias or alias.is_write:
            return False
        node = node.args[0]
    return False


def _described(
    captured: Captured,
    forward: tuple[Graph, Plan],
    backward: tuple[Graph, Plan] | None,
    device: torch.device,
    name: str,
) -> dict[str, Any]:
    """The variant as data (runtime/host/graph/function.h)."""
    places = {leaf: at for at, leaf in enumerate(captured.placeholders())}
    results = sum(returned.kind != "fixed" for returned in captured.returned)
    differentiable = list(captured.differentiable)
    structure, unflatten = _structure(captured.out_spec)
    return {
        "leaves": [_expected(argument) for argument in captured.arguments],
        "forward": describe(forward[1], forward[0], captured.guards, device, name),
        "backward": backward and describe(backward[1], backward[0], (), device, f"{name}_backward"),
        "returned": [
            ("fixed" if returned.kind == "fixed" else "result", returned.value)
            for returned in captured.returned
        ],
        "structure": structure,
        "unflatten": unflatten,
        "writes": [places[leaf] for leaf in captured.writes],
        "results": results,
        "takes": [
            (kind, which if kind == "saved" else differentiable.index(which))
            for kind, which in captured.backward_takes
        ],
        "differentiable": differentiable,
        "in_order": [int(each) for each in captured.in_order],
        "indifferent": backward is None and torch.is_grad_enabled() and _any_grad(captured),
        "gradients": [places[leaf] for leaf in captured.gradients],
        "besides": [],
        "kept": kept(captured),
        "again": None,
        "once": "is a graph of torch.compile's",
    }


def _around(function: Callable[..., Any], captured: Captured) -> dict[str, Any]:
    """What the host needs of the function itself."""
    fixed = [argument.value for argument in captured.arguments if argument.kind == "fixed"]
    once = why_once(captured)
    return {
        "besides": besides(function, fixed),
        "again": None if once else Again(function, captured),
        "once": once,
    }


def _any_grad(captured: Captured) -> bool:
    return any(a.kind == "tensor" and a.value.requires_grad for a in captured.arguments)


def _structure(spec: pytree.TreeSpec) -> tuple[int, Any]:
    """How returned leaves are put together: 0 a single one, 1 a tuple, 2 by the function beside."""
    if spec.is_leaf():
        return 0, None
    if spec.type is tuple and all(child.is_leaf() for child in spec.children()):
        return 1, None
    return 2, functools.partial(_unflatten, spec)


def _unflatten(spec: pytree.TreeSpec, leaves: tuple[Any, ...]) -> Any:
    return pytree.tree_unflatten(leaves, spec)


def _expected(argument: Any) -> tuple[Any, ...]:
    if argument.kind == "fixed":
        return "fixed", argument.value
    if argument.kind == "number":
        real = isinstance(argument.value, (float, torch.SymFloat))
        return ("real",) if real else ("integer",)
    fake = argument.value
    device = "" if argument.anywhere else str(fake.device)
    return "tensor", fake.dtype, device, fake.dim(), fake.requires_grad
