"""The function that users call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from megafuse.registry import arguments
from megafuse.registry.activation import ready
from megafuse.registry.declared import Op

_TEMPLATE = """
def {name}{signature}:
    if is_dynamo_compiling():
        return traced({names})
    return direct({names})
"""


def fused(op: Op) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function users call, and its globals, whose `direct` changes on first use.

    Written out rather than a closure over *args: Python then fills in defaults and keywords
    at no cost (0.1 µs instead of 0.6).
    """
    signature = inspect.signature(op.reference)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    namespace: dict[str, Any] = {
        "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
        "traced": _traced(op),
        "direct": functools.partial(_first_call, op),
    }
    text = _TEMPLATE.format(
        name=op.name,
        signature=inspect.Signature(bare),
        names=", ".join(a.name for a in op.arguments),
    )
    exec(compile(text, f"<megafuse.{op.name}>", "exec"), namespace)
    made = functools.update_wrapper(namespace[op.name], op.reference)
    made.__module__ = "megafuse"
    return made, namespace


def _first_call(op: Op, *args: Any) -> Any:
    """Loads the runtime, then does the call; later calls go straight to the runtime."""
    if ready(op):
        return op._namespace["direct"](*args)
    op.check(*args)
    return op.reference(*args)


def _traced(op: Op) -> Callable[..., Any]:
    """The call through the dispatcher, for tracers and everything that watches it."""
    overload = op.overload
    numbers = [i for i, a in enumerate(op.arguments) if a.kind == "tensor_or_number"]
    divisor = None if op.inverted is None else op.position(op.inverted)
    outputs = op.outputs
    more = bool(op.autograd.keeps) or op.random  # results that users do not see

    def call(*args: Any) -> Any:
        bare = False
        if any(not isinstance(args[i], Tensor) for i in numbers):
            dims = [a.dim() for a in args if isinstance(a, Tensor)]
            if dims and dims[0] == 0 and any(dims):
                # PyTorch promotes a Python number below every tensor, also below those without
                # dimensions, and the tensor that the dispatcher needs in its place would count as
                # one of those: with such a first argument the result could get another dtype.
                op.check(*args)
                return op.reference(*args)
            args, bare = arguments.as_tensors(args, numbers, divisor)
        results = overload(*args)
        if more:
            results = results[0] if outputs == 1 else tuple(results[:outputs])
        return results.squeeze(0) if bare else results

    return call
