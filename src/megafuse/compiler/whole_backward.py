"""Operators of others whose backward reads values: it becomes one call, as the operator is one.

AOTAutograd traces an operator's backward, on tensors without memory. One that reads values cannot
be traced. That of the product of experts in transformers is such a one (`offsets.tolist()`: where
each expert's rows end). So a mixture of experts that was trained fell into a graph for each piece
between the experts, and these ran eagerly. Here such a backward is an operator of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode

# A namespace that CUDA graphs do not record: who reads values makes the host wait.
_LIBRARY = torch.library.Library("megafuse_whole", "DEF")
_TRACED = ("aten", "prims", "prim", "megafuse", "megafuse_graph")  # backwards read no values there
_VALUE_IS_READ = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


def with_whole_backwards(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, and those inside of it, with `call_whole` in place of such operators."""
    for graph_module in module.modules():
        if not isinstance(graph_module, torch.fx.GraphModule):
            continue
        calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
        found = [node for node in calls if _reads_values(node)]
        for node in found:
            node.args = (_overload(node.target), *node.args)
            node.target = call_whole
        if found:
            graph_module.recompile()
    return module


def call_whole(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What the operator gives, with its backward as one operator. Is called while torch traces."""
    return _Whole.apply(op, *_in_order(op, args, kwargs))  # type: ignore[no-untyped-call]


class _Whole(torch.autograd.Function):
    """Keeps its tensors without asking that nobody changes them: that is for the operator to ask,
    which may not need them. (transformers adds the experts' biases to the product in place.)"""

    @staticmethod
    def forward(ctx: Any, op: torch._ops.OpOverload, *inputs: Any) -> Any:
        results = op(*inputs)
        ctx.op, ctx.inputs = op, inputs
        ctx.results = [each.detach() for each in _listed(results)]
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        wanted = list(ctx.needs_input_grad[1:])
        found = iter(_backward(ctx.op)(list(gradients), ctx.results, wanted, *ctx.inputs))
        return None, *(next(found) if want else None for want in wanted)


@functools.cache
def _backward(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The operator that runs its backward: the gradients of those inputs that are wanted."""
    name = f"{op._schema.name}_{op._overloadname}_backward".replace("::", "_")
    inputs = ", ".join(f"{each.type} {each.name}" for each in op._schema.arguments)
    _LIBRARY.define(
        f"{name}(Tensor[] of_gradients, Tensor[] of_results, bool[] of_wanted, {inputs})"
        " -> Tensor[]"
    )

    def shapes(_: Any, __: Any, wanted: Sequence[bool], *inputs: Any) -> list[Tensor]:
        return [torch.empty_like(x) for x, want in zip(inputs, wanted, strict=True) if want]

    def run(
        gradients: Sequence[Tensor], results: Sequence[Tensor], wanted: Sequence[bool], *inputs: Any
    ) -> list[Tensor]:
        made = shapes(gradients, results, wanted, *inputs)
        found = _run_backward(op, gradients, results, wanted, inputs)
        # Into memory of its own, with the strides that tracing was told.
        return [m.zero_() if f is None else m.copy_(f) for m, f in zip(made, found, strict=True)]

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"megafuse_whole::{name}", shapes, lib=_LIBRARY)
    made: torch._ops.OpOverload = getattr(torch.ops.megafuse_whole, name).default
    return made


def _run_backward(
    op: torch._ops.OpOverload,
    gradients: Sequence[Tensor],
    results: Sequence[Tensor],
    wanted: Sequence[bool],
    inputs: Sequence[Any],
) -> Sequence[Tensor | None]:
    """The operator's own, however it was registered: torch records a call of the operator, which
    gives what is known already, and runs back from there."""
    leaves = [
        x.detach().requires_grad_(want) if isinstance(x, Tensor) else x
        for x, want in zip(inputs, wanted, strict=True)
    ]
    sources = [x for x, want in zip(leaves, wanted, strict=True) if want]
    with _recording(), torch.enable_grad(), _Known(op, results):
        recorded = _listed(op(*leaves))
    return torch.autograd.grad(recorded, sources, gradients, allow_unused=True)


def _recording() -> Any:
    """Where autograd records, as it does not inside of a program."""
    left_out = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
        left_out = left_out.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), left_out)


class _Known(TorchDispatchMode):
    """An operator is not run: its results are these."""

    def __init__(self, op: torch._ops.OpOverload, results: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.results = op, [each.detach() for each in results]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not self.op:
            return func(*args, **(kwargs or {}))
        return self.results[0] if len(func._schema.returns) == 1 else tuple(self.results)


def _reads_values(node: torch.fx.Node) -> bool:
    """Whether its backward does, so that AOTAutograd could not trace it: found by trying."""
    op = _overload(node.target)
    if op is None or not _is_taken(op):
        return False
    try:
        _try_backward(op, node)
    except _VALUE_IS_READ:
        return True
    except Exception:  # AOTAutograd will say what it is
        return False
    return False


def _try_backward(op: torch._ops.OpOverload, node: torch.fx.Node) -> None:
    """On Dynamo's stand-ins, which have no memory."""
    given: Any = torch.fx.map_arg((node.args, node.kwargs), lambda x: x.meta["example_value"])
    inputs, results = _in_order(op, *given), _listed(node.meta["example_value"])
    wanted = [isinstance(x, Tensor) and x.requires_grad for x in inputs]
    if any(wanted) and all(_is_tried(x) for x in results):
        with results[0].fake_mode:  # type: ignore[attr-defined]
            _run_backward(op, [torch.empty_like(x) for x in results], results, wanted, inputs)


def _is_tried(result: Tensor) -> bool:
    return isinstance(result, FakeTensor) and result.is_floating_point()


def _is_taken(op: torch._ops.OpOverload) -> bool:
    """Tensors and plain values in, tensors out, nothing changed in place."""
    schema = op._schema
    return (
        op.namespace not in _TRACED
        and not schema.is_mutable
        and not any(each.kwarg_only or "[]" in str(each.type) for each in schema.arguments)
        and all(str(each.type) == "Tensor" for each in schema.returns)
    )


def _overload(target: Any) -> torch._ops.OpOverload | None:
    if isinstance(target, torch._ops.OpOverloadPacket) and target.overloads() == ["default"]:
        target = target.default
    return target if isinstance(target, torch._ops.OpOverload) else None


def _in_order(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """One value for each argument, as its schema lists them."""
    rest = op._schema.arguments[len(args) :]
    return (*args, *(kwargs.get(each.name, each.default_value) for each in rest))


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)
