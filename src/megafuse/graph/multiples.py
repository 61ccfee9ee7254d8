"""Sizes that the code divides: x.shape[-1] // 2, chunk(2), view(n, 32, -1).

Where the division is exact for the arguments at hand, the size is written 2·s from the start, and s
is its half. Then s//2 and s − s//2 are the same size and the halves of a row begin at multiples of
s, which no proof about s//2 would find. A call with an odd size is another capture, without this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from megafuse.graph import torch_versions

Symbols = dict[sympy.Symbol, sympy.Expr]


def in_multiples(
    symbols: Symbols, shapes: ShapeEnv, stand_ins: Iterable[Any], graphs: Iterable[torch.fx.Graph]
) -> Symbols:
    """`symbols`, with c·s for the sizes that are divided by c; s keeps the name."""
    traced = torch_versions.hints(shapes).items()
    hints = {s: int(n) for s, n in traced if s in symbols and n.is_Integer}
    alone = {e for tensor in stand_ins for e in _sizes(tensor) if e.is_Symbol and e in hints}
    found = dict.fromkeys(alone, 1)
    for expr in _expressions(shapes, graphs):
        for division in expr.atoms(FloorDiv, Mod, PythonMod):
            symbol, by = _divided(division)
            if symbol in found and hints[symbol] % math.lcm(found[symbol], by) == 0:
                found[symbol] = math.lcm(found[symbol], by)
    return {s: found.get(s, 1) * ours for s, ours in symbols.items()}


def _divided(division: sympy.Expr) -> tuple[sympy.Expr | None, int]:
    """The size that is divided, alone or rounded up, and by what number."""
    top, by = division.args
    rounding, size = top.as_coeff_Add()
    if not by.is_Integer or by < 2 or not 0 <= rounding < by:
        return None, 1
    return size, int(by)


def _expressions(shapes: ShapeEnv, graphs: Iterable[torch.fx.Graph]) -> Iterator[sympy.Basic]:
    for guard in shapes.guards:
        yield shapes.replace(guard.expr)
    for graph in graphs:
        for node in graph.nodes:
            for value in pytree.tree_leaves(node.meta.get("val")):
                yield from _sizes(value)


def _sizes(value: Any) -> Iterator[sympy.Expr]:
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    yield from (size.node.expr for size in sizes if isinstance(size, torch.SymInt))


def told(size: Any) -> tuple[sympy.Symbol, int] | None:
    """The symbol that an argument's size tells, and how many times it: of s and of 2·s."""
    if not isinstance(size, sympy.Expr):
        return None
    times, symbol = size.as_coeff_Mul()
    if not symbol.is_Symbol or not times.is_Integer or times < 1:
        return None
    return symbol, int(times)
