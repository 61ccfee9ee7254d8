"""One term as C++: an operator where there is one, else a call of a function of kernels/prims.h."""

from __future__ import annotations

import math
from dataclasses import dataclass

from megafuse.codegen.body import Applied, Fetched, Loaded, Reduced, Scalar, Term, Written
from megafuse.codegen.variant import STORAGE

_ATOM, _UNARY = 100, 90
_INFIX = {
    "mul": ("*", 80),
    "div": ("/", 80),
    "add": ("+", 70),
    "sub": ("-", 70),
    "lt": ("<", 60),
    "le": ("<=", 60),
    "gt": (">", 60),
    "ge": (">=", 60),
    "eq": ("==", 50),
    "ne": ("!=", 50),
    "logical_and": ("&", 40),
    "logical_xor": ("^", 30),
    "logical_or": ("|", 20),
}
_COMPARES = {"lt", "le", "gt", "ge", "eq", "ne"}
_FLOATS = {"Float", "Double", "Half", "BFloat16"}
_NARROW = {"Half", "BFloat16"}
# Of numbers that a 16-bit float holds these give one that it holds: nothing to round.
_EXACT = frozenset(
    {"neg", "abs", "sign", "minimum", "maximum", "fmin", "fmax", "copysign", "where"}
    | {"floor", "ceil", "trunc", "round"}
)
# Of 16-bit floats these are done in a few instructions: kernels/brief.h.
_BRIEF = frozenset(
    {"div", "reciprocal", "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"}
    | {"sigmoid", "tanh"}
)


@dataclass(frozen=True)
class Text:
    """C++ of some value, and how tightly its outermost operator binds."""

    code: str
    binds: int = _ATOM

    def within(self, binds: int) -> str:
        """For an operand of an operator that binds so tightly."""
        return self.code if self.binds >= binds else f"({self.code})"


def storage(dtype: str) -> str:
    """The type in memory, as namespace mf spells it."""
    return STORAGE[dtype].removeprefix("mf::")


def register(dtype: str) -> str:
    """The type that arithmetic is done in: float for 16-bit floats, else the type in memory."""
    return "float" if dtype in _NARROW else storage(dtype)


def expression(term: Term, args: list[Text], slots: dict[int, str], rounds: bool) -> Text:
    """`term` over the texts of its arguments. `slots` names the words that a Fetched needs."""
    if isinstance(term, Written):
        return literal(term.value, term.dtype)
    if isinstance(term, Fetched):
        return _fetch(term, args, slots)
    assert isinstance(term, Applied), f"no expression: {term}"
    made = _applied(term, args, rounds)
    if rounds and term.dtype in _NARROW and term.prim.name not in _EXACT | {"cast"}:
        return Text(f"rounded<{storage(term.dtype)}>({made.code})")
    return made


def as_stored(term: Term, rounds: bool) -> Term:
    """What goes to memory is rounded there: a cast of a float to 16 bits can be left out."""
    while (
        isinstance(term, Applied)
        and term.prim.name in ("cast", "demote")
        and term.dtype in _NARROW
        and term.args[0].dtype in (term.dtype, "Float")
        and not rounds
    ):
        term = term.args[0]
    return term


def literal(value: bool | int | float, dtype: str) -> Text:
    """A number in the source."""
    kind = register(dtype)
    if kind == "bool":
        return Text("true" if value else "false")
    if kind in ("float", "double"):
        return _float_literal(float(value), kind)
    whole = int(value)
    if whole == -(2**63):
        return Text("i64(-9223372036854775807ll - 1)")
    suffix = "" if abs(whole) < 2**31 else "ll"
    if kind == "i32" and suffix == "":
        return Text(str(whole), _ATOM if whole >= 0 else _UNARY)
    return Text(f"{kind}({whole}{suffix})")


def _float_literal(value: float, kind: str) -> Text:
    if math.isnan(value):
        return Text(f"(infinity<{kind}>() - infinity<{kind}>())")
    if math.isinf(value):
        return Text(f"{'-' if value < 0 else ''}infinity<{kind}>()", _UNARY if value < 0 else _ATOM)
    digits = repr(value)
    if "." not in digits and "e" not in digits:
        digits += ".0"
    negative = math.copysign(1, value) < 0
    return Text(digits + ("f" if kind == "float" else ""), _UNARY if negative else _ATOM)


def _applied(term: Applied, args: list[Text], rounds: bool) -> Text:
    name = term.prim.name
    of = term.args[0].dtype  # what it is done in; `gives` may be bool
    if name == "cast":
        return _cast(of, term.dtype, args[0])
    if name == "demote":
        return args[0]
    if term.prim.name in _COMPARES and of in _NARROW:
        args = [_as_compared(arg, text) for arg, text in zip(term.args, args, strict=True)]
    if name == "div" and _is_of_the_call(term.args[1]) and not isinstance(term.args[0], Reduced):
        return Text(f"over({args[0].code}, {args[1].code})")
    if name == "div" and of == "Float" and [*map(_is_of_a_row, term.args)] == [False, True]:
        return Text(f"over_row({args[0].code}, {args[1].code})")
    if name.startswith("brief_") or (name in _BRIEF and of in _NARROW and not rounds):
        return Text(f"brief::{name.removeprefix('brief_')}({', '.join(a.code for a in args)})")
    if name in _INFIX and (of in _FLOATS or _INFIX[name][1] < 70):
        sign, binds = _INFIX[name]
        # Both sides of & and | in parentheses unless they are names: nobody knows that table.
        left, right = (binds, binds + 1) if binds >= 70 else (_UNARY, _UNARY)
        return Text(f"{args[0].within(left)} {sign} {args[1].within(right)}", binds)
    if name == "neg" and of in _FLOATS:
        return Text(f"-{args[0].within(_ATOM)}", _UNARY)
    if name == "logical_not":
        return Text(f"!{args[0].within(_ATOM)}", _UNARY)
    if name == "reciprocal":
        one = "1.0f" if register(of) == "float" else "1.0"
        return Text(f"{one} / {args[0].within(81)}", 80)
    if term.prim.gives == "float":
        name = f"{name}<{register(term.dtype)}>"
    called = "select" if name == "where" else name
    return Text(f"{called}({', '.join(a.code for a in args)})")


def _is_of_the_call(term: Term) -> bool:
    """Whether it is a float that the user wrote or passed, no element of a tensor."""
    while isinstance(term, Applied) and term.prim.name in ("cast", "demote"):
        term = term.args[0]
    return isinstance(term, (Scalar, Written)) and term.dtype in _FLOATS


def _is_of_a_row(term: Term) -> bool:
    """Whether it is the same all along a row: made of numbers and of what is such."""
    seen, stack = {term}, [term]  # terms are shared: each is asked once
    while stack:
        each = stack.pop()
        if isinstance(each, Applied):
            stack += [arg for arg in each.args if arg not in seen]
            seen.update(each.args)
        elif isinstance(each, Loaded):
            if not each.steady:
                return False
        elif not isinstance(each, (Reduced, Scalar, Written)):
            return False
    return True


def _as_compared(term: Term, text: Text) -> Text:
    """Computed in 16 bits, a value is compared as eager has it, rounded: it may be held against
    what was stored. (The gradient of amax goes to the elements that are equal to it.)"""
    is_rounded = isinstance(term, Applied) and term.prim.name == "cast"
    if is_rounded or not isinstance(term, (Applied, Reduced)):
        return text
    return Text(f"rounded<{storage(term.dtype)}>({text.code})")


def _cast(source: str, target: str, arg: Text) -> Text:
    if target in _NARROW and source != target:
        return Text(f"rounded<{storage(target)}>({arg.code})")
    if register(source) == register(target):
        return arg
    if source in _FLOATS and target not in _FLOATS:
        return Text(f"to<{register(target)}>({arg.code})")
    return Text(f"{register(target)}({arg.code})")


def _fetch(term: Fetched, args: list[Text], slots: dict[int, str]) -> Text:
    at = [
        f"{place.within(80)} * {slots[stride]}"
        for place, stride in zip(args, term.strides, strict=False)
    ]
    words = [slots[term.base], " + ".join(at) or "0"]
    if term.inside is not None:
        words += [args[-1].code, literal(term.otherwise, term.dtype).code]
    return Text(f"fetch<{storage(term.dtype)}>({', '.join(words)})")
