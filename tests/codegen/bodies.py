"""A short way to write bodies: `op("mul", x, y)` has the dtype of its first operand."""

from __future__ import annotations

import torch

from megafuse.codegen.body import Applied, Loaded, Reduced, Reduction, Scalar, Term, Written
from megafuse.codegen.prims import PRIMS

NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def load(operand: int, dtype: str = "Float", name: str | None = None) -> Loaded:
    return Loaded(operand, dtype=dtype, name=name)


def number(slot: int, dtype: str = "Double", name: str | None = None) -> Scalar:
    return Scalar(slot, dtype=dtype, name=name)


def written(value: float, dtype: str = "Float") -> Written:
    return Written(value, dtype=dtype)


def op(prim: str, *args: Term, name: str | None = None, line: str | None = None) -> Applied:
    known = PRIMS[prim]
    dtype = "Bool" if known.gives == "bool" else args[-1].dtype
    return Applied(known, args, dtype=dtype, name=name, line=line)


def cast(value: Term, dtype: str, name: str | None = None) -> Applied:
    return Applied(PRIMS["cast"], (value,), dtype=dtype, name=name)


def over_row(kind: Reduction, arg: Term, name: str | None = None) -> Reduced:
    dtype = {"argmax": "Long", "argmin": "Long", "any": "Bool", "all": "Bool"}.get(kind, arg.dtype)
    return Reduced(kind, arg, dtype=dtype, name=name)
