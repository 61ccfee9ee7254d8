"""Pointwise operations: out[i] = prim(a[i], b[i], …), with PyTorch's promotion written as casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import sympy
import torch

from megafuse.graph.ir import Value
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.table import NotLowered, rule

aten, prims = torch.ops.aten, torch.ops.prims
Makes: TypeAlias = Callable[..., Value]

# One operand; integers become floats.
FLOAT_UNARY = """
    sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sigmoid tanh sin cos tan asin acos
    atan sinh cosh asinh acosh atanh erf erfc erfinv lgamma digamma
"""
# One operand of any number's dtype; of integers and bools these are the operand itself.
FLOAT_ONLY = ["floor", "ceil", "trunc", "round"]
ARITHMETIC = {"add": "logical_or", "mul": "logical_and", "sub": "sub"}  # and what it is of bools
EXTREMA = {"maximum": "logical_or", "minimum": "logical_and"}
BITWISE = {
    "bitwise_and": ("bit_and", "logical_and"),
    "bitwise_or": ("bit_or", "logical_or"),
    "bitwise_xor": ("bit_xor", "logical_xor"),
}


def unary(prim: str) -> Makes:
    return lambda b, x: b.apply(prim, b.to(x, b.out.dtype))


for name in FLOAT_UNARY.split():
    rule(getattr(aten, name).default)(unary(name))


def of_floats_only(prim: str) -> Makes:
    return lambda b, x: b.apply(prim, x) if x.dtype.is_floating_point else x


for name in FLOAT_ONLY:
    rule(getattr(aten, name).default)(of_floats_only(name))


def of_numbers(prim: str) -> Makes:
    return lambda b, x: x if x.dtype == torch.bool else b.apply(prim, x)


for name in ("abs", "sign", "neg"):
    rule(getattr(aten, name).default)(of_numbers(name))


def arithmetic(prim: str, of_bools: str) -> Makes:
    def lower(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
        dtype = b.out.dtype
        if dtype == torch.bool:
            return b.apply(of_bools, x, y, dtype=dtype)
        if alpha != 1:
            y = b.apply("mul", y, alpha, dtype=dtype)
        return b.apply(prim, x, y, dtype=dtype)

    return lower


for name, of_bools in ARITHMETIC.items():
    rule(getattr(aten, name).Tensor, getattr(aten, name).Scalar)(arithmetic(name, of_bools))
for name, of_bools in EXTREMA.items():
    rule(getattr(aten, name).default)(arithmetic(name, of_bools))


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(b: Builder, x: Operand, y: Operand, alpha: Any = 1) -> Value:
    return arithmetic("sub", "sub")(b, y, x, alpha)


def fmax_or_fmin(of_floats: str, others: str) -> Makes:
    def lower(b: Builder, x: Value, y: Value) -> Value:
        if b.out.dtype.is_floating_point:
            return b.apply(of_floats, x, y, dtype=b.out.dtype)
        return arithmetic(others, EXTREMA[others])(b, x, y)

    return lower


rule(aten.fmax.default)(fmax_or_fmin("fmax", "maximum"))
rule(aten.fmin.default)(fmax_or_fmin("fmin", "minimum"))


def binary(prim: str) -> Makes:
    return lambda b, x, y: b.apply(prim, x, y, dtype=b.out.dtype)


for name in ("atan2", "hypot"):
    rule(getattr(aten, name).default)(binary(name))
rule(aten.copysign.Tensor, aten.copysign.Scalar)(binary("copysign"))
rule(aten.remainder)(binary("mod"))
rule(aten.fmod)(binary("fmod"))
rule(aten.bitwise_left_shift, aten.__lshift__)(binary("shift_left"))
rule(aten.bitwise_right_shift, aten.__rshift__)(binary("shift_right"))


@rule(aten.div)
def div(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    prim = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    return b.apply(prim, x, y, dtype=b.out.dtype)


@rule(aten.floor_divide)
def floor_divide(b: Builder, x: Operand, y: Operand) -> Value:
    return b.apply("floor_div", x, y, dtype=b.out.dtype)


@rule(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_of_tensors(b: Builder, x: Operand, y: Operand) -> Value:
    return b.apply("pow", x, y, dtype=b.out.dtype)


@rule(aten.pow.Tensor_Scalar)
def pow_of_scalar(b: Builder, x: Value, exponent: Operand) -> Value:
    """Small powers as PyTorch has them: products, roots and their reciprocals."""
    x = b.to(x, b.out.dtype)
    if isinstance(exponent, (Value, sympy.Expr)):
        return b.apply("pow", x, exponent)
    if exponent == 1:
        return x
    if exponent in (2, 3):
        square = b.apply("mul", x, x)
        return square if exponent == 2 else b.apply("mul", square, x)
    roots = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if x.dtype.is_floating_point and exponent in roots:
        return b.apply(roots[exponent], x)
    if x.dtype.is_floating_point and exponent == -2:
        return b.apply("reciprocal", b.apply("mul", x, x))
    return b.apply("pow", x, exponent)


@rule(aten.square.default)
def square(b: Builder, x: Value) -> Value:
    return pow_of_scalar(b, x, 2)


def comparison(prim: str) -> Makes:
    return lambda b, x, y: b.apply(prim, x, y, dtype=b.promoted(x, y))


for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    rule(getattr(aten, name))(comparison(name))


def logical(prim: str) -> Makes:
    return lambda b, *operands: b.apply(prim, *operands, dtype=torch.bool)


for name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    rule(getattr(aten, name).default)(logical(name))


def bitwise(of_integers: str, of_bools: str) -> Makes:
    def lower(b: Builder, *operands: Operand) -> Value:
        dtype = b.out.dtype
        return b.apply(of_bools if dtype == torch.bool else of_integers, *operands, dtype=dtype)

    return lower


for name, (of_integers, of_bools) in BITWISE.items():
    rule(getattr(aten, name))(bitwise(of_integers, of_bools))
rule(aten.bitwise_not.default)(bitwise("bit_not", "logical_not"))


@rule(aten.isnan.default)
def isnan(b: Builder, x: Value) -> Value:
    return b.apply("ne", x, x)


@rule(aten.isinf.default)
def isinf(b: Builder, x: Value) -> Value:
    return b.apply("isinf", x) if x.dtype.is_floating_point else b.apply("ne", x, x)


@rule(aten.signbit.default)
def signbit(b: Builder, x: Value) -> Value:
    if x.dtype == torch.bool:
        return b.apply("ne", x, x)
    if not x.dtype.is_floating_point:
        return b.apply("lt", x, 0)
    return b.apply("lt", b.apply("copysign", 1.0, x, dtype=x.dtype), 0.0)


@rule(aten.where.self)
def where(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return b.apply("where", condition, x, y, dtype=b.out.dtype)


@rule(aten.clamp, aten.clamp_min, aten.hardtanh.default)
def clamp(
    b: Builder, x: Value, min: Operand | None = None, max: Operand | None = None, **more: Operand
) -> Value:
    dtype = b.out.dtype
    low, high = more.get("min_val", min), more.get("max_val", max)
    result = b.to(x, dtype)
    if low is not None:
        result = b.apply("maximum", result, low, dtype=dtype)
    if high is not None:
        result = b.apply("minimum", result, high, dtype=dtype)
    return result


@rule(aten.clamp_max)
def clamp_max(b: Builder, x: Value, max: Operand) -> Value:
    return clamp(b, x, None, max)


@rule(aten.round.decimals)
def round_decimals(b: Builder, x: Value, decimals: Any = 0) -> Value:
    if not isinstance(decimals, int) or not x.dtype.is_floating_point:
        raise NotLowered
    if decimals == 0:
        return b.apply("round", x)
    scale = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    wide = b.wide(x)
    return b.demote(b.apply(back, b.apply("round", b.apply(there, wide, scale)), scale), x.dtype)


@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, start: Value, end: Value, weight: Operand) -> Value:
    """From the nearer end, as PyTorch: exact at both."""
    dtype = b.out.dtype
    way = b.apply("sub", end, start, dtype=dtype)

    def from_start() -> Value:
        return b.apply("add", start, b.apply("mul", way, weight), dtype=dtype)

    def from_end() -> Value:
        rest = b.apply("sub", 1, weight, dtype=dtype)
        return b.apply("sub", end, b.apply("mul", way, rest), dtype=dtype)

    if isinstance(weight, (int, float)):
        return from_start() if abs(weight) < 0.5 else from_end()
    small = b.apply("lt", b.apply("abs", b.to(weight, dtype)), 0.5)
    return b.apply("where", small, from_start(), from_end(), dtype=dtype)


@rule(aten._to_copy.default)
def to_copy(b: Builder, x: Value, dtype: torch.dtype | None = None, **more: Any) -> Value:
    return b.cast(x, b.out.dtype)


@rule(prims.convert_element_type.default)
def convert(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    """Of torch's own decompositions alone: back to 16 bits from float32 is not the user's wish."""
    return b.demote(x, dtype) if x.dtype == torch.float32 else b.cast(x, dtype)


@rule(
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.view_of.default if hasattr(aten, "view_of") else prims.view_of.default,
)
def identity(b: Builder, x: Value, **memory: Any) -> Value:
    return x


@rule(aten.copy.default)
def copy(b: Builder, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """What x[...] = source becomes: source in x's dtype and shape."""
    return b.expanded(b.cast(source, x.dtype), x.shape)
