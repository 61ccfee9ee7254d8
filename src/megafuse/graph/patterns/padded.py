"""A factor that a kernel computes, or products share, gets rows of whole 16 bytes once for all.

    mm(x, w), x [m, 50257]          → mm(padded(x), padded(w))
    mm(x.T, y)                      → mm(padded(x).T, y)[:50257]

Rows that are no whole 16 bytes keep a library from its fast kernels, so the step pads them with a
copy (runtime/host/programs/product.h), for each product anew. The gradient of a head of 50,257
words has two: 0.97 ms each of a step of 24 for 8192 tokens of GPT-2 in bfloat16 on an H200. The
kernel that computes it can as well write the zeros beside it.

Other factors, of which too little is known before the call, are left to the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any, NamedTuple

import sympy
import torch

from megafuse.graph.clean import rewrite
from megafuse.graph.coordinates import identity, is_known
from megafuse.graph.ir import (
    Constant,
    Extern,
    Gather,
    Graph,
    Input,
    Result,
    Size,
    Value,
    View,
    axis,
)

_WHOLE = 8  # numbers in 16 bytes
_LEAST = 512  # of a size: smaller products are not worth it
_DTYPES = (torch.bfloat16, torch.float16)


class _Sizes(NamedTuple):
    """Of a product [m, k] by [k, n]."""

    m: Size
    k: Size
    n: Size


def with_padding(graph: Graph, target: Any) -> Graph:
    """`target`: the step that multiplies, product(a, b, bias, …)."""
    products = [v for v in graph.values if isinstance(v, Extern) and v.target is target]
    used = Counter(_base(factor).name for product in products for factor in product.args[:2])
    return rewrite(graph, _Padding(target, used).step)


class _Padding:
    """What was made so far: each value once, whatever the products that want it."""

    def __init__(self, target: Any, used: Counter[str]) -> None:
        self.target = target
        self.used = used  # how many products have it as a factor, by name
        self.sizes: dict[Extern, _Sizes] = {}  # of the product as it was, by the padded one
        self.known: dict[Hashable, Value] = {}

    def step(self, mine: Value) -> Value:
        if isinstance(mine, Extern) and mine.target is self.target:
            return self.product(mine)
        if isinstance(mine, Result) and mine.extern in self.sizes and len(mine.shape) == 2:
            return _cut(mine, self.sizes[mine.extern])
        return mine

    def product(self, mine: Extern) -> Extern:
        a, b, bias, *rest = mine.args
        (m, k), (_, n) = a.shape, b.shape
        sizes = _Sizes(m, k, n)
        whole = self.whole(a, b, sizes)
        if whole == sizes:
            return mine
        factors = self.padded(a, whole.m, whole.k), self.padded(b, whole.k, whole.n)
        if bias is not None and whole.n != n:
            bias = self.filled(bias, (whole.n,))
        shape = (whole.m, whole.n)
        new = Extern(self.target, (*factors, bias, *rest), {}, dtype=mine.dtype, shape=shape)
        self.sizes[new] = sizes
        return new

    def whole(self, a: Value, b: Value, sizes: _Sizes) -> _Sizes:
        """With the sizes along which a factor lies in memory rounded up, where that is worth it."""
        m, k, n = sizes
        if a.dtype not in _DTYPES or any(is_known(s) and int(s) < _LEAST for s in sizes):
            return sizes
        if self.is_worth_it(a):
            m, k = (_up(m), k) if _is_transposed(a) else (m, _up(k))
        if self.is_worth_it(b):
            k, n = (_up(k), n) if _is_transposed(b) else (k, _up(n))
        return _Sizes(m, k, n)

    def is_worth_it(self, factor: Value) -> bool:
        """A kernel computes it, or two products share it; a weight has one, and may be large where
        the rest of its product is small."""
        base = _base(factor)
        return not isinstance(base, (Input, Result, Constant)) or self.used[base.name] > 1

    def padded(self, factor: Value, rows: Size, columns: Size) -> Value:
        """As it lies: what is a factor by rows here and by columns there is padded once."""
        if (rows, columns) == tuple(factor.shape):
            return factor
        turned = self.turned(factor)
        if _is_transposed(factor):
            return self.turned(self.filled(turned, (columns, rows)))
        return self.filled(self.turned(turned), (rows, columns))

    def turned(self, matrix: Value) -> Value:
        """Its transpose, and where it is a view, another one of the same."""
        swapped = {axis(0): axis(1), axis(1): axis(0)}
        source, at = matrix, identity(matrix.shape)
        if isinstance(matrix, View):
            source, at = matrix.source, tuple(map(sympy.sympify, matrix.at))
        at = tuple(a.xreplace(swapped) for a in at)
        shape = tuple(reversed(matrix.shape))
        if at == identity(shape) and shape == tuple(source.shape):
            return source
        return self.once(View(source, at, dtype=matrix.dtype, shape=shape), source, "turned", at)

    def filled(self, value: Value, shape: tuple[Size, ...]) -> Value:
        at = identity(shape)
        made = Gather(value, at, 0.0, dtype=value.dtype, shape=shape)
        return self.once(made, value, "padded", shape)

    def once(self, made: Value, source: Value, how: str, details: Hashable) -> Value:
        key = (source, how, made.shape, details)
        if key not in self.known:
            made.name, made.origin = f"{source.name}_{how}_{len(self.known)}", source.origin
        return self.known.setdefault(key, made)


def _base(factor: Value) -> Value:
    """What it is a view of."""
    while isinstance(factor, View):
        factor = factor.source
    return factor


def _is_transposed(factor: Value) -> bool:
    """Whether its columns lie side by side."""
    if not isinstance(factor, View):
        return False
    last = sympy.sympify(factor.at[-1])
    return axis(0) in last.free_symbols and axis(1) not in last.free_symbols


def _up(size: Size) -> Size:
    return -(-int(size) // _WHOLE) * _WHOLE if is_known(size) else size


def _cut(padded: Result, sizes: _Sizes) -> Value:
    """The result as it was, seen in that of the padded product."""
    rows, columns = padded.extern.shape
    strides = (columns, 1)
    whole = Result(padded.extern, padded.number, strides, dtype=padded.dtype, shape=(rows, columns))
    whole.name, whole.origin = f"{padded.name}_whole", padded.origin
    shape = (sizes.m, sizes.n)
    if shape == (rows, columns):
        return whole
    return View(whole, identity(shape), dtype=padded.dtype, shape=shape)
