"""An op's arguments: what may be passed, the words of every error about them, and what the
dispatcher gets for numbers.

The host runtime notices that something is wrong; the words of the error are here alone, so that
the reference path gives the same ones.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Argument:
    """One argument; `kind` is an ArgKind of runtime/host/torch/op.h in lower case."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf
    optional: bool = False
    own_dtype: bool = False
    shape: str = ""

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("tensor", "any_tensor", "tensor_or_number")

    @property
    def schema(self) -> str:
        types = {"number": "float", "integer": "int", "flag": "bool", "choice": "str"}
        text = f"{types.get(self.kind, 'Tensor')}{'?' if self.optional else ''} {self.name}"
        if self.default is inspect.Parameter.empty:
            return text
        value = f'"{self.default}"' if isinstance(self.default, str) else repr(self.default)
        return f"{text}={value}"


def check(
    op: str,
    arguments: Sequence[Argument],
    args: Sequence[Any],
    pointwise: bool = True,
    further: Callable[..., str | None] | None = None,
) -> None:
    """Raises a TypeError or ValueError that names the argument, what was expected and what came."""
    if len(args) != len(arguments):
        raise TypeError(f"megafuse.{op} takes {len(arguments)} arguments, got {len(args)}")
    for argument, value in zip(arguments, args, strict=True):
        problem = _problem(argument, value)
        if problem is not None:
            error, expected = problem
            raise error(f"megafuse.{op}: argument '{argument.name}' must be {expected}")
    pairs = [(a, v) for a, v in zip(arguments, args, strict=True) if _is_tensor(v)]
    tensors = {a.name: v for a, v in pairs}
    if pointwise:
        # A zero-dimensional CPU tensor counts as a number, as in PyTorch.
        _check_devices(
            op, {n: t for n, t in tensors.items() if t.dim() > 0 or t.device.type != "cpu"}
        )
        _check_broadcast(op, tensors)
    else:
        _check_devices(op, tensors)
        _check_dtypes(op, {a.name: v for a, v in pairs if not a.own_dtype})
        _check_rules(op, pairs)
    problem_beyond = further(*args) if further is not None else None
    if problem_beyond is not None:
        raise ValueError(f"megafuse.{op}: {problem_beyond}")


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


def _problem(argument: Argument, value: Any) -> tuple[type[Exception], str] | None:
    """The exception's type and "expected, got …", or None when the value fits."""
    came = _describe(value)
    none = " or None" if argument.optional else ""
    if value is None and argument.optional:
        return None
    if argument.is_tensor:
        if argument.kind == "tensor_or_number" and _is_number(value):
            return None
        if not _is_tensor(value):
            wanted = "a Tensor or a number" if argument.kind == "tensor_or_number" else "a Tensor"
            return TypeError, f"{wanted}{none}, got {came}"
        allowed = FLOATS if argument.kind == "tensor" else FLOATS + INTEGERS
        if value.dtype not in allowed:
            names = ", ".join(str(d).removeprefix("torch.") for d in allowed)
            return TypeError, f"a Tensor of {names}, got {came}"
        if value.layout != torch.strided:
            return TypeError, f"a dense (strided) Tensor, got one of layout {value.layout}"
    elif argument.kind in ("number", "integer"):
        fits, kind = (
            (_is_number, "a float") if argument.kind == "number" else (_is_integer, "an int")
        )
        if not fits(value):
            return TypeError, f"{kind}{none}, got {came}"
        if not argument.least <= value <= argument.most:
            bounds = f"between {argument.least:g} and {argument.most:g}"
            return ValueError, f"{kind} {bounds}, got {value!r}"
    elif argument.kind == "flag":
        if not isinstance(value, bool):
            return TypeError, f"True or False, got {came}"
    elif not isinstance(value, str) or value not in argument.choices:
        error = ValueError if isinstance(value, str) else TypeError
        return error, f"one of {', '.join(map(repr, argument.choices))}, got {came}"
    return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _is_number(value: Any) -> bool:
    """A real number, or what converts to one: NumPy's scalars, a tracer's symbols."""
    if isinstance(value, (torch.SymFloat, torch.SymInt)):
        return True
    if isinstance(value, (bool, Tensor, str)) or not hasattr(value, "__float__"):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _is_integer(value: Any) -> bool:
    """An int, or what stands for one: NumPy's integers, a tracer's symbols."""
    if isinstance(value, torch.SymInt):
        return True
    if isinstance(value, (bool, Tensor)):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{_dtype(value)}{list(value.shape)} on {value.device}"
    text = repr(value)
    kind = type(value).__name__
    return f"{kind} {text}" if len(text) <= 40 else f"a {kind}"


def _check_devices(op: str, tensors: dict[str, Tensor]) -> None:
    devices = {t.device for t in tensors.values()}
    if len(devices) > 1:
        where = ", ".join(f"'{n}' is on {t.device}" for n, t in tensors.items())
        raise ValueError(
            f"megafuse.{op}: all tensors must be on one device, but {where}. "
            "Move them with .to(device)."
        )
    kinds = {d.type for d in devices} - {"cpu", "cuda", "meta"}
    if kinds:
        raise ValueError(
            f"megafuse.{op}: tensors must be on cpu or cuda, got {', '.join(sorted(kinds))}. "
            f"megafuse.reference.{op} runs on any device."
        )


def _check_broadcast(op: str, tensors: dict[str, Tensor]) -> None:
    try:
        torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    except RuntimeError:
        shapes = ", ".join(f"'{n}' is {list(t.shape)}" for n, t in tensors.items())
        raise ValueError(
            f"megafuse.{op}: the tensors' shapes must broadcast, but {shapes}"
        ) from None


def _check_dtypes(op: str, tensors: dict[str, Tensor]) -> None:
    if len({t.dtype for t in tensors.values()}) > 1:
        listed = ", ".join(f"'{n}' is {_dtype(t)}" for n, t in tensors.items())
        raise TypeError(
            f"megafuse.{op}: the tensors must have one dtype, but {listed}. "
            "Convert them with .to(dtype), or use torch.autocast."
        )


# ---- shape rules, such as "...K" or "3EE" (runtime/host/torch/op.h)

_RULE = re.compile(r"(\.\.\.)?(\d*[A-Z])*")
_SIZE = re.compile(r"(\d*)([A-Z])")


def is_rule(text: str) -> bool:
    """Whether this is a shape rule; an empty one allows any shape."""
    return _RULE.fullmatch(text) is not None


def _check_rules(op: str, pairs: Sequence[tuple[Argument, Tensor]]) -> None:
    """Each size is held against the argument that had its letter first."""
    seen: dict[str, tuple[int, str, Tensor]] = {}
    leading: tuple[str, Tensor, list[int]] | None = None
    for argument, tensor in pairs:
        if not argument.shape:
            continue
        rule, shape = argument.shape, list(tensor.shape)
        sizes = [(int(times or 1), letter) for times, letter in _SIZE.findall(rule)]
        free = len(shape) - len(sizes)
        expected = f"megafuse.{op}: argument '{argument.name}' must be {_spelled(rule)}"
        if free < 0 or (free > 0 and not rule.startswith("...")):
            raise ValueError(f"{expected}, got {shape}")
        if rule.startswith("..."):
            name, first, lead = leading = leading or (argument.name, tensor, shape[:free])
            if lead != shape[:free]:
                raise ValueError(
                    f"{expected} with the leading dimensions {lead} of '{name}' "
                    f"{list(first.shape)}, got {shape}"
                )
        for (times, letter), size in zip(sizes, shape[free:], strict=True):
            known, name, first = seen.setdefault(letter, (size, argument.name, tensor))
            if size != times * known:
                raise ValueError(
                    f"{expected} where {letter} is {known} as in '{name}' {list(first.shape)}, "
                    f"got {shape}"
                )


def _spelled(rule: str) -> str:
    """`[..., 3E, E]`"""
    lead = ["..."] if rule.startswith("...") else []
    return "[" + ", ".join(lead + [times + letter for times, letter in _SIZE.findall(rule)]) + "]"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def as_tensors(
    args: tuple[Any, ...], numbers: list[int], divisor: int | None
) -> tuple[tuple[Any, ...], bool]:
    """Zero-dimensional tensors for `numbers`, as the dispatcher wants, and whether the others got
    a dimension: a number never changes the result's dtype, but as a tensor it would, beside tensors
    that have no dimensions either.

    float32 loses nothing: kernels compute in it unless a tensor is float64, and then the number
    is made float64 too. But PyTorch's CUDA kernels take the reciprocal of a divisor in float64.
    """
    floats = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    double = any(t.dtype == torch.float64 for t in floats)
    bare = len(floats) > 0 and all(t.dim() == 0 for t in floats)  # torch 2.11 traces no bool(list)
    made = []
    for i, a in enumerate(args):
        if i in numbers and not isinstance(a, Tensor):
            wide = double or i == divisor
            a = torch.scalar_tensor(a, dtype=torch.float64 if wide else torch.float32)
        elif bare and isinstance(a, Tensor) and a.dim() == 0:
            a = a.unsqueeze(0)
        made.append(a)
    return tuple(made), bare
