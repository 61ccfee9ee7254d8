"""What an element can go through in one step: the primitives that generated functors are made of.

A primitive is monomorphic: lowering casts operands to one dtype first, so that no rule of promotion
is left for those who read the IR. `kind` says which dtypes it takes, `gives` what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "integer", "bool", "number", "any"]  # number: float or integer
Gives = Literal["same", "bool", "float"]  # float: float32 or float64, as its node says


@dataclass(frozen=True)
class Prim:
    """One primitive. `cost` is what it takes on a processor, in multiplications, for the cut."""

    name: str
    operands: int
    kind: Kind
    gives: Gives = "same"
    cost: int = 1


def _prims(
    operands: int,
    kind: Kind,
    names: str,
    cost: int = 1,
    gives: Gives = "same",
) -> dict[str, Prim]:
    return {name: Prim(name, operands, kind, gives, cost) for name in names.split()}


# `div` is the true quotient of floats, `floor_div` and `mod` go with Python's sign, `trunc_div` and
# `fmod` with C's. `minimum` and `maximum` return NaN if either is, `fmin` and `fmax` the other one.
# `round` goes to even. `gelu`, `silu` and their slopes are whole, because they are more accurate so
# (kernels/activations.h); a slope is the derivative at x, which the gradient is multiplied by.
# `brief_exp` is for float32 on the way to a 16-bit result (kernels/brief.h).
# `uniform` and `normal` are random numbers of a seed, an offset and a place, all int64
# (kernels/draws.h): the same for the same three, so that they can be drawn again.
PRIMS: dict[str, Prim] = {
    **_prims(1, "number", "neg abs sign"),
    **_prims(2, "number", "add sub mul minimum maximum"),
    **_prims(2, "number", "floor_div trunc_div mod fmod", cost=8),
    **_prims(2, "float", "div", cost=4),
    **_prims(2, "number", "pow", cost=30),
    **_prims(2, "float", "fmin fmax copysign"),
    **_prims(2, "float", "atan2 hypot", cost=25),
    **_prims(2, "any", "eq ne lt le gt ge", gives="bool"),
    **_prims(1, "bool", "logical_not"),
    **_prims(2, "bool", "logical_and logical_or logical_xor"),
    **_prims(1, "integer", "bit_not"),
    **_prims(2, "integer", "bit_and bit_or bit_xor shift_left shift_right"),
    **_prims(1, "float", "floor ceil trunc round"),
    **_prims(1, "float", "brief_exp", cost=5),
    **_prims(1, "float", "sqrt rsqrt reciprocal", cost=4),
    **_prims(1, "float", "exp exp2 expm1 log log2 log10 log1p sigmoid tanh", cost=15),
    **_prims(1, "float", "gelu gelu_tanh silu gelu_slope gelu_tanh_slope silu_slope", cost=20),
    **_prims(1, "float", "sin cos tan asin acos atan sinh cosh asinh acosh atanh", cost=20),
    **_prims(1, "float", "erf erfc erfinv lgamma digamma", cost=25),
    **_prims(1, "float", "isnan isinf", gives="bool"),
    **_prims(3, "integer", "uniform", cost=20, gives="float"),
    **_prims(3, "integer", "normal", cost=50, gives="float"),
}
# Three more with signatures of their own: where(bool, a, b); cast(x), which rounds x to the dtype
# of its node: what the user asked for with .to(), or what promotion asks for; and demote(x), from
# float32 to the 16-bit dtype of its node: x itself, unless every result is rounded to its dtype. It
# ends what lowering does in float32 on the way (a variance, say), and what a number is given as.
PRIMS["where"] = Prim("where", 3, "any")
PRIMS["cast"] = Prim("cast", 1, "any")
PRIMS["demote"] = Prim("demote", 1, "float", cost=0)
