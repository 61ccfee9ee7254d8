"""Python's arithmetic on the numbers of a call: float64, as Python has it."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from megafuse.graph.ir import Value
from megafuse.graph.lowering.builder import Builder, Operand
from megafuse.graph.lowering.table import rule

BINARY = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.floordiv: "floor_div",
    operator.mod: "mod",
    operator.pow: "pow",
    torch.sym_max: "maximum",
    torch.sym_min: "minimum",
}
UNARY = {operator.neg: "neg", operator.abs: "abs"}
for _name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "tanh", "asin", "acos", "atan"):
    for _module, _prefix in ((torch, "sym_"), (torch, "_sym_"), (math, "")):
        if hasattr(_module, _prefix + _name):
            UNARY[getattr(_module, _prefix + _name)] = _name


def of_numbers(prim: str) -> Any:
    def lower(b: Builder, *operands: Operand) -> Value:
        return b.apply(prim, *operands, dtype=torch.float64)

    return lower


for _target, _prim in (*BINARY.items(), *UNARY.items()):
    rule(_target)(of_numbers(_prim))


@rule(torch.sym_float)
def sym_float(b: Builder, x: Operand) -> Value:
    return b.to(x, torch.float64)
