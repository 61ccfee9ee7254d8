"""The value of an expression of sizes; symbols are ints, floats, or tensors of coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

Environment = dict[sympy.Symbol, Any]


def evaluated(expr: Any, known: Mapping[sympy.Symbol, Any]) -> Any:
    """What the expression is. Numbers of Python's are their own value."""
    if not isinstance(expr, sympy.Basic):
        return expr
    if isinstance(expr, sympy.Symbol):
        return known[expr]
    if expr.is_Boolean and not expr.args:
        return bool(expr)
    if expr.is_number:
        return int(expr) if expr.is_integer else float(expr)
    if isinstance(expr, sympy.Piecewise):
        for branch, condition in expr.args:
            if evaluated(condition, known):
                return evaluated(branch, known)
    name = type(expr).__name__
    if name not in _FUNCTIONS:
        raise NotImplementedError(f"an expression of sizes has {name}: {expr}")
    args = [evaluated(arg, known) for arg in expr.args]
    if name in ("Add", "Mul", "Max", "Min", "And", "Or"):
        result = args[0]
        for arg in args[1:]:
            result = _FUNCTIONS[name](result, arg)
        return result
    return _FUNCTIONS[name](*args)


def _smaller(a: Any, b: Any) -> Any:
    return torch.minimum(*_tensors(a, b)) if _any_tensor(a, b) else min(a, b)


def _larger(a: Any, b: Any) -> Any:
    return torch.maximum(*_tensors(a, b)) if _any_tensor(a, b) else max(a, b)


def _any_tensor(*values: Any) -> bool:
    return any(isinstance(value, torch.Tensor) for value in values)


def _tensors(*values: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(value) for value in values]


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "Pow": lambda a, b: a**b,
    "Max": _larger,
    "Min": _smaller,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "PowByNatural": lambda a, b: a**b,
    "FloatPow": lambda a, b: a**b,
    "ToFloat": float,
    "TruncToInt": int,
    "Abs": abs,
    "Equality": lambda a, b: a == b,
    "Unequality": lambda a, b: a != b,
    "GreaterThan": lambda a, b: a >= b,
    "LessThan": lambda a, b: a <= b,
    "StrictGreaterThan": lambda a, b: a > b,
    "StrictLessThan": lambda a, b: a < b,
    "And": lambda a, b: bool(a and b),
    "Or": lambda a, b: bool(a or b),
    "Not": lambda a: not a,
}
assert FloorDiv.__name__ in _FUNCTIONS
