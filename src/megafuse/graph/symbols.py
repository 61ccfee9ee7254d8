"""Expressions of sizes and numbers as code for the host runtime: one instruction a slot, each once.

    code = Code()
    code.define(s0, code.load("size", argument=0, which=1))
    code.slot(s0 * 4 + 1)            # the slot that has it, when the code has run

An instruction is (opcode, a, b): slots, or for loads an argument and a dimension. What is an int64
and what a double is known here, and the opcode says it (runtime/host/graph/symbols.h).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import sympy

_OPCODES = """
    constant size stride offset number
    add multiply floor_divide modulo minimum maximum power
    equal not_equal less less_equal and or not to_real
    real_add real_multiply real_divide real_power real_minimum real_maximum
    real_equal real_not_equal real_less real_less_equal floor
"""
OPCODES = tuple(_OPCODES.split())

Instruction = tuple[int, int, int]

# sympy's and torch's names → the opcode for ints and for floats.
_FOLDED = {
    "Add": ("add", "real_add"),
    "Mul": ("multiply", "real_multiply"),
    "Max": ("maximum", "real_maximum"),
    "Min": ("minimum", "real_minimum"),
    "And": ("and", "and"),
    "Or": ("or", "or"),
}
_BINARY = {
    "FloorDiv": "floor_divide",
    "CleanDiv": "floor_divide",
    "Mod": "modulo",
    "PythonMod": "modulo",
    "PowByNatural": "power",
}
_REAL = {"IntTrueDiv": "real_divide", "FloatTrueDiv": "real_divide", "FloatPow": "real_power"}
_COMPARED = {
    "Equality": ("equal", "real_equal", False),
    "Unequality": ("not_equal", "real_not_equal", False),
    "StrictLessThan": ("less", "real_less", False),
    "LessThan": ("less_equal", "real_less_equal", False),
    "StrictGreaterThan": ("less", "real_less", True),
    "GreaterThan": ("less_equal", "real_less_equal", True),
}


class NotWritten(NotImplementedError):
    """An expression that the host has no instruction for."""


class Code:
    """Instructions so far. Equal ones share a slot."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.numbers: list[int | float] = []
        self._slots: dict[Any, int] = {}
        self._real: list[bool] = []
        self._defined: dict[sympy.Symbol, int] = {}

    def load(self, what: str, argument: int, which: int = 0, real: bool = False) -> int:
        """The slot of an argument's size, stride, offset or of the number that it is."""
        return self._add(what, argument, which, real)

    def define(self, symbol: sympy.Symbol, slot: int) -> None:
        self._defined[symbol] = slot

    def knows(self, symbol: sympy.Symbol) -> bool:
        return symbol in self._defined

    def is_real(self, slot: int) -> bool:
        return self._real[slot]

    def slot(self, expr: Any, real: bool = False) -> int:
        """The slot that has the expression; as a double where `real`."""
        found = self._slot(expr)
        return self._as_real(found) if real else found

    def slots(self, exprs: Iterable[Any]) -> list[int]:
        return [self.slot(expr) for expr in exprs]

    def equal(self, a: int, b: int) -> int:
        """The slot that says whether two slots are equal."""
        return self._either("equal", "real_equal", a, b, gives=False)

    def divided(self, slot: int, by: int) -> int:
        """The slot that has this one's int over a number, rounded down."""
        return slot if by == 1 else self._add("floor_divide", slot, self._constant(by))

    def _slot(self, expr: Any) -> int:
        if isinstance(expr, (bool, int, float)):
            return self._constant(expr)
        if expr in self._defined:
            return self._defined[expr]
        if expr.is_Integer or expr in (sympy.true, sympy.false):
            return self._constant(int(bool(expr)) if expr.is_Boolean else int(expr))
        if expr.is_Float or (expr.is_number and not expr.is_integer):
            return self._constant(float(expr))
        if isinstance(expr, sympy.Symbol):
            raise NotWritten(f"nothing in the arguments says what {expr} is")
        return self._made(expr)

    def _made(self, expr: sympy.Basic) -> int:
        name = type(expr).__name__
        if name == "Mul" and expr.args[0].is_Rational and not expr.args[0].is_Integer:
            top, bottom = expr.args[0].as_numer_denom()
            whole = self._slot(sympy.Mul(top, *expr.args[1:]))
            return self._add("floor_divide", whole, self._slot(bottom))
        if name == "Piecewise":
            return self._piecewise(expr.args)
        args = [self._slot(arg) for arg in expr.args]
        if name in _FOLDED:
            integer, real = _FOLDED[name]
            return reduce(lambda a, b: self._either(integer, real, a, b), args)
        if name in _BINARY:
            return self._add(_BINARY[name], args[0], args[1])
        if name == "Pow":
            whole = not any(map(self.is_real, args)) and expr.args[1].is_nonnegative
            return (
                self._add("power", args[0], args[1]) if whole else self._reals("real_power", args)
            )
        if name in _REAL:
            return self._reals(_REAL[name], args)
        if name == "ToFloat":
            return self._as_real(args[0])
        if name == "Not":
            return self._add("not", args[0], 0)
        if name in _COMPARED:
            integer, real, swapped = _COMPARED[name]
            a, b = reversed(args) if swapped else args
            return self._either(integer, real, a, b, gives=False)
        if name in ("FloorToInt", "floor"):
            return self._add("floor", self._as_real(args[0]), 0)
        if name == "TruncToInt":
            return self._truncated(self._as_real(args[0]))
        raise NotWritten(f"an expression of sizes has {name}: {expr}")

    def _truncated(self, real: int) -> int:
        """Towards 0: ⌊max(x, 0)⌋ − ⌊max(−x, 0)⌋."""
        zero, minus = self._constant(0.0), self._constant(-1.0)
        below = self._add("real_multiply", real, minus, real=True)
        whole = [
            self._add("floor", self._add("real_maximum", each, zero, real=True))
            for each in (real, below)
        ]
        negative = self._add("multiply", whole[1], self._constant(-1))
        return self._add("add", whole[0], negative)

    def _piecewise(self, branches: tuple[Any, ...]) -> int:
        """The first branch whose condition holds: otherwise + holds · (value − otherwise)."""
        (value, condition), *others = branches
        if condition == sympy.true or not others:
            return self._slot(value)
        holds, made, otherwise = (
            self._slot(condition),
            self._slot(value),
            self._piecewise((*others,)),
        )
        minus = self._either("multiply", "real_multiply", otherwise, self._constant(-1))
        more = self._either("add", "real_add", made, minus)
        return self._either(
            "add", "real_add", otherwise, self._either("multiply", "real_multiply", holds, more)
        )

    def _either(self, integer: str, real: str, a: int, b: int, gives: bool = True) -> int:
        """The instruction for ints, or for doubles where either is one; `gives` one then."""
        if not (self.is_real(a) or self.is_real(b)):
            return self._add(integer, a, b)
        return self._add(real, self._as_real(a), self._as_real(b), gives)

    def _reals(self, name: str, args: list[int]) -> int:
        return self._add(name, self._as_real(args[0]), self._as_real(args[1]), real=True)

    def _as_real(self, slot: int) -> int:
        return slot if self.is_real(slot) else self._add("to_real", slot, 0, real=True)

    def _constant(self, number: bool | int | float) -> int:
        real = isinstance(number, float)
        key = ("constant", real, repr(number))
        if key not in self._slots:
            self.numbers.append(number if real else int(number))
            self._slots[key] = self._append("constant", len(self.numbers) - 1, 0, real)
        return self._slots[key]

    def _add(self, name: str, a: int, b: int = 0, real: bool = False) -> int:
        key = (name, a, b)
        if key not in self._slots:
            self._slots[key] = self._append(name, a, b, real)
        return self._slots[key]

    def _append(self, name: str, a: int, b: int, real: bool) -> int:
        self.instructions.append((OPCODES.index(name), a, b))
        self._real.append(real)
        return len(self._real) - 1
