"""Whether a stride is negative, where its sizes are symbols.

Of −n·(h − k + 1) sympy cannot tell: h − k + 1 is a size, and that sizes are positive is nowhere in
it. But a stride is a product of sizes, or minus one; so its sign is that of any example.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import sympy

from megafuse.graph.ir import Size

_EXAMPLES, _VALUES = 300, (1, 2, 3, 4, 5, 7, 11, 16, 33, 64)


def may_be_negative(strides: Sequence[Size], positive: Sequence[Size]) -> bool:
    """Whether one of the strides is negative, wherever all of `positive` are what they say. Yes, if
    no example is found."""
    steps = [sympy.sympify(step) for step in strides]
    if any(step.is_negative for step in steps):
        return True
    open_ones = tuple(step for step in steps if step.is_nonnegative is None)
    known = tuple(size for size in map(sympy.sympify, positive) if not size.is_positive)
    return bool(open_ones) and _is_negative_in_an_example(open_ones, known)


@functools.lru_cache(maxsize=1 << 12)
def _is_negative_in_an_example(
    steps: tuple[sympy.Expr, ...], positive: tuple[sympy.Expr, ...]
) -> bool:
    chance = random.Random(0)
    symbols = sorted({s for expr in steps + positive for s in expr.free_symbols}, key=str)
    for _ in range(_EXAMPLES):
        example = {symbol: sympy.Integer(chance.choice(_VALUES)) for symbol in symbols}
        if all(size.xreplace(example) > 0 for size in positive):
            return any(step.xreplace(example) < 0 for step in steps)
    return True
