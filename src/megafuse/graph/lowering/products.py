"""Matrix products of 16-bit floats on a CPU without instructions for them.

The operands are widened to float32 by kernels, the library multiplies them, and what follows reads
the float32 product: the result is rounded once. PyTorch's own product of such takes hundreds of
times as long (runtime/host/programs/widened.h has the figures).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from megafuse.graph.coordinates import same
from megafuse.graph.cost import numel
from megafuse.graph.ir import Extern, Result, Value, View, axis
from megafuse.graph.lowering.builder import HALVES, Builder, Operand

aten = torch.ops.aten
Target: TypeAlias = torch._ops.OpOverload


def is_product(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether it is a product that `widened` knows, of 16-bit floats."""
    if target not in _FACTORS:
        return False
    left, right = (args[k] for k in _FACTORS[target])
    return all(isinstance(x, Value) and x.dtype in HALVES for x in (left, right))


# Where the two factors are among the arguments.
_FACTORS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mv.default: (0, 1),
    aten.dot.default: (0, 1),
    aten.matmul.default: (0, 1),
    aten.linear.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}
# The product alone, of those that also add something.
_BARE = {aten.addmm.default: aten.mm.default, aten.baddbmm.default: aten.bmm.default}


def widened(b: Builder, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
    """The product by the library in float32, and what is added to it by a kernel."""
    left, right = (_wide(b, args[k]) for k in _FACTORS[target])
    product: Value = _product(b, _BARE.get(target, target), left, right)
    if target is aten.linear.default:
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        if bias is not None:
            product = b.apply("add", product, b.wide(bias))
    elif target in _BARE:
        product = _times(b, product, kwargs.get("alpha", 1))
        if kwargs.get("beta", 1) != 0:
            product = b.apply("add", product, _times(b, b.wide(args[0]), kwargs.get("beta", 1)))
    return b.demote(product, b.out.dtype)


def _times(b: Builder, x: Value, number: Operand) -> Value:
    one = isinstance(number, (int, float)) and number == 1
    return x if one else b.apply("mul", x, number)


def _wide(b: Builder, x: Value) -> Value:
    """In float32. A matrix that was transposed, reshaped or expanded is widened as it lies."""
    if isinstance(x, View) and _shows_all(x):
        return b.view(_wide(b, x.source), x.shape, x.at)
    return b.wide(x)


def _shows_all(x: View) -> bool:
    """Whether every element of the source is in the view: then there is no more to widen."""
    if same(numel(x.shape), numel(x.source.shape)):
        return True
    axes = {axis(dim): size for dim, size in enumerate(x.shape)}
    places = zip(x.at, x.source.shape, strict=True)
    return all(size == 1 or axes.get(place) == size for place, size in places)


def _product(b: Builder, target: Target, left: Value, right: Value) -> Result:
    shape, strides = b.out_shape(), b.sizes(b.out.stride())
    made = Extern(target, (left, right), {}, dtype=torch.float32, shape=shape)
    b.add(made, target._schema.name.partition("::")[2])
    result = Result(made, 0, strides, dtype=torch.float32, shape=shape)
    made.results = (b.add(result, made.name),)
    return result
