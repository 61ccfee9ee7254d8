"""A function through capture, lowering, cleaning and the interpreter, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from megafuse.graph.capture import Captured, capture
from megafuse.graph.clean import clean
from megafuse.graph.interpret import Mode, interpret
from megafuse.graph.ir import Extern, Graph, Number, Value
from megafuse.graph.lowering import decompositions, lower
from megafuse.graph.validate import validate

HALVES = (torch.float16, torch.bfloat16)


def captured(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Captured:
    return capture(function, args, kwargs, decompositions())


def lowered(
    function: Callable[..., Any], *args: Any, trust_indices: bool = False, **kwargs: Any
) -> Graph:
    """The cleaned forward graph."""
    graph = lower(captured(function, *args, **kwargs), trust_indices=trust_indices)
    return clean(validate(graph))


def placed(found: Captured, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that the forward graph takes."""
    leaves = pytree.tree_leaves((tuple(args), kwargs))
    return [leaves[i] for i in found.placeholders()]


def externs(graph: Graph) -> set[str]:
    return {str(value.target) for value in graph.values if isinstance(value, Extern)}


def run(
    function: Callable[..., Any],
    *args: Any,
    mode: Mode = "eager",
    passes: bool = True,
    trust_indices: bool = False,
    **kwargs: Any,
) -> Any:
    """What the function returns, by way of the IR."""
    found = captured(function, *args, **kwargs)
    graph = validate(lower(found, trust_indices=trust_indices))
    outputs = interpret(clean(graph) if passes else graph, placed(found, args, kwargs), mode)
    return returned(found, outputs)


def check(function: Callable[..., Any], *args: Any, whole: bool = True, **kwargs: Any) -> None:
    """The IR gives what eager gives, before and after the passes; and nothing is left to the
    library, where `whole` says so."""
    want = function(*args, **kwargs)
    found = captured(function, *args, **kwargs)
    graph = validate(lower(found))
    cleaned = clean(graph)
    if whole:
        assert not externs(cleaned)
    for each in (graph, cleaned):
        assert_same(returned(found, interpret(each, placed(found, args, kwargs))), want)


def returned(found: Captured, outputs: list[Any]) -> Any:
    leaves = [
        leaf.value
        if leaf.kind == "fixed"
        else outputs[leaf.value]
        if leaf.kind == "tensor"
        else outputs[leaf.value].item()
        for leaf in found.returned
    ]
    return pytree.tree_unflatten(leaves, found.out_spec)


def gradients(
    function: Callable[..., Any], *args: Any, mode: Mode = "eager", **kwargs: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Outputs' gradients that were drawn, then the arguments' gradients: the IR's and eager's."""
    found = captured(function, *args, **kwargs)
    assert found.backward is not None
    forward, backward = clean(lower(found)), clean(lower(found, "backward"))
    inputs = placed(found, args, kwargs)
    with torch.no_grad():
        outputs = interpret(forward, inputs, mode)
    saved = outputs[len(outputs) - found.saved :] if found.saved else []
    leaves = pytree.tree_leaves((tuple(args), kwargs))
    wanted = [leaves[i] for i in found.gradients]
    results = [r for r in pytree.tree_leaves(function(*args, **kwargs)) if _differentiable(r)]
    drawn = [torch.randn_like(r) for r in results]
    of_result = dict(zip(_differentiable_places(found), drawn, strict=True))
    takes = [
        of_result[which] if kind == "gradient" else taken(saved[which], taker)
        for (kind, which), taker in zip(found.backward_takes, backward.inputs, strict=False)
    ]
    with torch.no_grad():
        got = interpret(backward, takes, mode)
    want = torch.autograd.grad(results, wanted, drawn, allow_unused=True)
    return drawn, got, list(want)


def _differentiable(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad


def _differentiable_places(found: Captured) -> list[int]:
    """Every result with a gradient is one that the backward graph takes a gradient of."""
    return [which for kind, which in found.backward_takes if kind == "gradient"]


def taken(saved: Any, taker: Value) -> Any:
    """A number is saved as a tensor of one element, and taken as a number."""
    return saved.item() if isinstance(taker, Number) else saved


def assert_same(got: Any, want: Any, dtype: torch.dtype | None = None) -> None:
    """Close, leaf by leaf, as PyTorch's defaults have it; dtypes and shapes alike."""
    got, want = pytree.tree_leaves(got), pytree.tree_leaves(want)
    assert len(got) == len(want)
    for mine, eager in zip(got, want, strict=True):
        if not isinstance(eager, torch.Tensor):
            assert mine == eager
            continue
        loose = {"rtol": 2e-2, "atol": 2e-2} if eager.dtype in HALVES else {}
        torch.testing.assert_close(mine, eager.detach(), equal_nan=True, **loose)
