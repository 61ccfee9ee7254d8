"""A matrix product, and the activation of its result, as one step of our GEMM family.

    mm(a, b), addmm(bias, a, b)         → product(a, b, bias)
    gelu(addmm(bias, a, b))             → product(a, b, bias, "gelu"), which keeps what gelu is
                                          given where others read it

The step (runtime/host/programs/product.h) multiplies float32 on the tensor cores of float16
(docs/fp32.md), pads sizes that keep a library from its fast kernels, and has the activation in the
product's own launch where a GEMM takes it. An activation that other arithmetic follows stays with
that: one kernel has both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import same
from megafuse.graph.cost import numel
from megafuse.graph.ir import Constant, Extern, Graph, Pointwise, Result, Value, View

aten = torch.ops.aten
_LIBRARY = torch.library.Library("megafuse_graph", "FRAGMENT")
_LIBRARY.define(
    'product(Tensor a, Tensor b, Tensor? bias=None, str act="", bool keep=False)'
    " -> (Tensor, Tensor)"
)
ops: Any = torch.ops.megafuse_graph
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ACTS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "maximum": "relu"}  # by primitive


def _product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, act: str = "", keep: bool = False
) -> tuple[Tensor, Tensor]:
    """What the host does, by PyTorch's own operations."""
    pre = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    out = pre.clone()
    if act:
        gelu = {"gelu": "none", "gelu_tanh": "tanh"}.get(act)
        out = torch.relu(pre) if gelu is None else aten.gelu(pre, approximate=gelu)
    return out, pre if keep else pre.new_empty(0)


PRODUCT = ops.product.default

_LIBRARY.impl("product", _product, "CompositeExplicitAutograd")
torch.library.register_fake("megafuse_graph::product", _product, lib=_LIBRARY)


def with_products(graph: Graph, activations: bool = True) -> Graph:
    """With every product that the step takes, and where it may the activation after it."""
    users = graph.users()
    acts = dict(_acts(graph, users)) if activations else {}  # by the Extern
    applied = {value: extern for extern, value in acts.items()}
    made: dict[Extern, Extern] = {}  # the product in place of the old one
    keeps = {e: act for e, act in acts.items() if len(_readers(e, users, graph)) > 1}
    old = iter(graph.values)

    def step(mine: Value) -> Value:
        value = next(old)
        if isinstance(value, Extern) and _is_taken(value):
            made[value] = _step(mine, acts.get(value), value in keeps)
            return made[value]
        if isinstance(value, Result) and value.extern in acts:
            return _result(made[value.extern], value, 1 if value.extern in keeps else 0)
        if value in applied:
            return _applied(value, made[applied[value]])
        return mine

    return rewrite(graph, step)


def _is_taken(value: Extern) -> bool:
    """Whether it is a product that the step knows."""
    factors = value.args[-2:] if value.target in (aten.mm.default, aten.addmm.default) else ()
    if value.target is aten.addmm.default:
        (bias, *_) = value.args
        if value.kwargs or not isinstance(bias, Value) or len(bias.shape) != 1:
            return False
        if bias.dtype != value.dtype or not same(bias.shape[0], value.shape[1]):
            return False
    return bool(factors) and all(
        isinstance(x, Value) and x.dtype == value.dtype and x.dtype in _DTYPES for x in factors
    )


def _step(mine: Any, act: Value | None, keep: bool) -> Extern:
    bias = mine.args[0] if mine.target is aten.addmm.default else None
    name = _ACTS[act.prim.name] if isinstance(act, Pointwise) else ""
    args = (*mine.args[-2:], bias, name, keep)
    return Extern(PRODUCT, args, {}, dtype=mine.dtype, shape=mine.shape)


def _result(extern: Extern, like: Result, number: int) -> Result:
    return Result(extern, number, like.strides, dtype=like.dtype, shape=like.shape)


def _applied(act: Value, extern: Extern) -> Value:
    """The activation's value: the product's first result, seen as the activation saw the other."""
    seen = act.operands[0]
    base = seen.source if isinstance(seen, View) else seen
    assert isinstance(base, Result)
    out = _result(extern, base, 0)
    out.name, out.origin = f"{act.name}_of_product", act.origin
    if not isinstance(seen, View):
        return out
    return View(out, seen.at, dtype=act.dtype, shape=act.shape)


def label(args: tuple[Any, ...]) -> str:
    """What a step does, for explain."""
    bias, act = args[2], args[3]
    return " + ".join(("product", *(["bias"] if bias is not None else []), *([act] if act else [])))


# Which activations


def _acts(graph: Graph, users: dict[Value, list[Value]]) -> Iterator[tuple[Extern, Value]]:
    """Products, each with the one activation that it can have with it."""
    for value in graph.values:
        if not isinstance(value, Extern) or not _is_taken(value):
            continue
        found = [r for r in _readers(value, users, graph) if r is not None and _is_act(r)]
        if len(found) == 1 and not _goes_on(found[0], users):
            yield value, found[0]


def _is_act(value: Value) -> bool:
    if not isinstance(value, Pointwise) or value.prim.name not in _ACTS:
        return False
    if value.prim.name != "maximum":
        return _shows_all(value.inputs[0])
    x, least = value.inputs
    return isinstance(least, Constant) and least.value == 0 and _shows_all(x)


def _shows_all(seen: Value) -> bool:
    """Whether it is a product's result, or all of one."""
    base = seen.source if isinstance(seen, View) else seen
    return isinstance(base, Result) and same(numel(seen.shape), numel(base.shape))


def _readers(extern: Extern, users: dict[Value, list[Value]], graph: Graph) -> list[Value | None]:
    """Who reads the product's result, seen through views; None for an output of the graph."""
    found: list[Value | None] = []
    pending: list[Value] = list(extern.results)
    while pending:
        value = pending.pop()
        found += [None] * graph.outputs.count(value)
        for user in users[value]:
            if isinstance(user, View):
                pending.append(user)
            else:
                found.append(user)
    return found


def _goes_on(act: Value, users: dict[Value, list[Value]]) -> bool:
    """Whether arithmetic of ours reads the activation."""
    pending = [act]
    while pending:
        for user in users[pending.pop()]:
            if isinstance(user, View):
                pending.append(user)
            elif not isinstance(user, Extern):
                return True
    return False
