"""How values that nobody asked for in a certain layout lie in memory: as eager would leave them.

A convolution of channels-last images gives channels-last ones, and so does what follows it; the
library's next step was traced for that. So a value lies in the order of the first operand of its
shape, as PyTorch's own pointwise operations have it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import sympy

from megafuse.graph.affine import contiguous, same_strides
from megafuse.graph.coordinates import same_shape
from megafuse.graph.ir import Input, Pointwise, Result, Size, Value, View, axis
from megafuse.graph.storage import base_of, view_strides

Order = tuple[int, ...]  # dimensions from the outermost in memory to the innermost


class Layouts:
    """Orders of the values of one graph, asked for in the graph's order."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._orders: dict[Value, Order | None] = {}
        self._views: dict[View, Order | None] = {}
        for value in values:
            self._orders[value] = self._order(value)

    def strides(self, value: Value) -> tuple[Size, ...]:
        """Dense strides in the value's order."""
        order = self._orders.get(value)
        return contiguous(value.shape) if order is None else ordered(value.shape, order)

    def _order(self, value: Value) -> Order | None:
        if isinstance(value, (Input, Result)):
            return order_of(value.shape, value.strides)
        if isinstance(value, Pointwise):
            for operand in value.inputs:
                if len(operand.shape) > 1 and same_shape(operand.shape, value.shape):
                    if isinstance(operand, View):
                        return self._of_view(operand)
                    return self._orders.get(operand)
        return None

    def _of_view(self, view: View) -> Order | None:
        """As its base lies in memory, the view does: heads, say, that are a product's columns. (An
        attention's result lies as its query does, and what follows was traced for that. Llama's
        queries lay otherwise: each layer copied the result, 12.7 us of 520 on an H200.)"""
        if view not in self._views:
            base, at = base_of(view)
            known = base.strides if isinstance(base, (Input, Result)) else self.strides(base)
            seen = view_strides(known, view, at)
            self._views[view] = None if seen is None else order_of(view.shape, seen[0])
        return self._views[view]


def memory_order(value: Value, depth: int = 32) -> Order:
    """A value's dimensions as memory has them, from the outermost: those of what it is a view of,
    or of the first of its shape that it is computed from. What is further away than `depth` values
    is taken to lie in order, so that graphs of any length are cut in time."""
    logical = tuple(range(len(value.shape)))
    if isinstance(value, (Input, Result)):
        return next(_orders_of(value), logical)
    if depth == 0:
        return logical
    if isinstance(value, Pointwise):
        same = (o for o in value.inputs if same_shape(o.shape, value.shape))
        nearest = next(same, None)
        return logical if nearest is None else memory_order(nearest, depth - 1)
    if isinstance(value, View):
        places = [at if isinstance(at, sympy.Symbol) else None for at in value.at]
        turned = [places[d] for d in memory_order(value.source, depth - 1)]
        found = tuple(d for at in turned for d in logical if axis(d) == at)
        return found if sorted(found) == list(logical) else logical
    return logical


def _orders_of(value: Input | Result) -> Iterator[Order]:
    """Orders in which the value is dense."""
    for order in itertools.permutations(range(len(value.shape))):
        if len(order) > 4 and order != tuple(range(len(order))):
            yield from filter(None, [order_of(value.shape, value.strides)])
            return  # too many to try
        if same_strides(value.strides, ordered(value.shape, order), value.shape):
            yield order


def ordered(shape: Sequence[Size], order: Order) -> tuple[Size, ...]:
    """Strides of dense memory whose dimensions lie in this order."""
    strides: list[Size] = [1] * len(shape)
    step: Size = 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * shape[dim]
    return tuple(strides)


def order_of(shape: Sequence[Size], strides: Sequence[Size]) -> Order | None:
    """The order, if the strides are dense and it is one of those in use; None for row-major."""
    rank = len(shape)
    if rank < 2 or same_strides(strides, contiguous(shape), shape):
        return None
    last = tuple(range(rank))
    channels_last = (0, *last[2:], 1)
    turned = (*last[:-2], rank - 1, rank - 2)
    heads = (0, 2, 1, *last[3:]) if rank > 3 else last
    for order in (channels_last, turned, heads):
        if same_strides(strides, ordered(shape, order), shape):
            return order
    return None
