"""An op's arguments: what its signature says, and the words of every error about them.

The host runtime notices that something is wrong; the words are here, in one place, so that the
reference path gives the same ones.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor


@dataclass(frozen=True)
class Argument:
    """One argument; `kind` is an ArgKind of runtime/host/op.h in lower case."""

    name: str
    kind: str
    default: Any = inspect.Parameter.empty
    choices: tuple[str, ...] = ()
    least: float = -math.inf
    most: float = math.inf

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("tensor", "any_tensor", "tensor_or_number")

    @property
    def schema(self) -> str:
        types = {"number": "float", "flag": "bool", "choice": "str"}
        text = f"{types.get(self.kind, 'Tensor')} {self.name}"
        if self.default is inspect.Parameter.empty:
            return text
        value = f'"{self.default}"' if isinstance(self.default, str) else repr(self.default)
        return f"{text}={value}"


def parse(
    function: Callable[..., Any],
    choices: dict[str, dict[str, str]],
    any_dtype: tuple[str, ...],
    ranges: dict[str, tuple[float, float]],
) -> list[Argument]:
    """The arguments of a reference function, from its type hints."""
    hints = get_type_hints(function)
    kinds: dict[Any, str] = {
        Tensor: "tensor",
        Tensor | float: "tensor_or_number",
        float: "number",
        bool: "flag",
        str: "choice",
    }
    parsed = []
    for name, parameter in inspect.signature(function).parameters.items():
        if hints.get(name) not in kinds:
            raise TypeError(
                f"{function.__name__}: argument '{name}' is annotated {hints.get(name)}; an op's "
                "argument is a Tensor, Tensor | float, float, bool or str"
            )
        kind = kinds[hints[name]]
        if kind == "tensor" and name in any_dtype:
            kind = "any_tensor"
        least, most = ranges.get(name, (-math.inf, math.inf))
        parsed.append(
            Argument(name, kind, parameter.default, tuple(choices.get(name, ())), least, most)
        )
    return parsed


def check(op: str, arguments: Sequence[Argument], args: Sequence[Any]) -> None:
    """Raises a TypeError or ValueError that names the argument, what was expected and what came."""
    if len(args) != len(arguments):
        raise TypeError(f"megafuse.{op} takes {len(arguments)} arguments, got {len(args)}")
    for argument, value in zip(arguments, args, strict=True):
        problem = _problem(argument, value)
        if problem is not None:
            error, expected = problem
            raise error(f"megafuse.{op}: argument '{argument.name}' must be {expected}")
    tensors = {
        a.name: v for a, v in zip(arguments, args, strict=True) if a.is_tensor and _is_tensor(v)
    }
    _check_devices(op, tensors)
    _check_shapes(op, tensors)


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


def _problem(argument: Argument, value: Any) -> tuple[type[Exception], str] | None:
    """The exception's type and "expected, got …", or None when the value fits."""
    came = _describe(value)
    if argument.is_tensor:
        if argument.kind == "tensor_or_number" and _is_number(value):
            return None
        if not _is_tensor(value):
            wanted = "a Tensor or a number" if argument.kind == "tensor_or_number" else "a Tensor"
            return TypeError, f"{wanted}, got {came}"
        allowed = FLOATS if argument.kind == "tensor" else FLOATS + INTEGERS
        if value.dtype not in allowed:
            names = ", ".join(str(d).removeprefix("torch.") for d in allowed)
            return TypeError, f"a Tensor of {names}, got {came}"
        if value.layout != torch.strided:
            return TypeError, f"a dense (strided) Tensor, got one of layout {value.layout}"
    elif argument.kind == "number":
        if not _is_number(value):
            return TypeError, f"a float, got {came}"
        if not argument.least <= float(value) <= argument.most:
            bounds = f"between {argument.least:g} and {argument.most:g}"
            return ValueError, f"a float {bounds}, got {value!r}"
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


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    text = repr(value)
    kind = type(value).__name__
    return f"{kind} {text}" if len(text) <= 40 else f"a {kind}"


def _check_devices(op: str, tensors: dict[str, Tensor]) -> None:
    # A zero-dimensional CPU tensor counts as a number, as in PyTorch.
    placed = {n: t for n, t in tensors.items() if t.dim() > 0 or t.device.type != "cpu"}
    devices = {t.device for t in placed.values()}
    if len(devices) > 1:
        where = ", ".join(f"'{n}' is on {t.device}" for n, t in placed.items())
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


def _check_shapes(op: str, tensors: dict[str, Tensor]) -> None:
    try:
        torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    except RuntimeError:
        shapes = ", ".join(f"'{n}' is {list(t.shape)}" for n, t in tensors.items())
        raise ValueError(
            f"megafuse.{op}: the tensors' shapes must broadcast, but {shapes}"
        ) from None
