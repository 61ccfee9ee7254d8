"""Arguments for a function from what a person types: shapes, dtypes, and numbers by name."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")


class Refused(ValueError):
    """What was typed does not make sense; the message says what would."""


def arguments(
    function: Callable[..., Any],
    shapes: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    assignments: Sequence[str],
) -> dict[str, Any]:
    """By name: what `assignments` (NAME=VALUE) say, and tensors for the rest without a default.

    One shape is for all tensors, several are one for each in order; dtypes alike.
    """
    called = str(getattr(function, "__name__", "the function"))
    parameters = inspect.signature(function).parameters
    given = dict(map(_assignment, assignments))
    for name in given:
        if name not in parameters:
            close = difflib.get_close_matches(name, list(parameters), n=1)
            meant = f": did you mean {close[0]}?" if close else ""
            raise Refused(f"{called} has no argument {name!r}{meant}")
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    tensors = [
        p.name
        for p in parameters.values()
        if p.name not in given and p.default is p.empty and p.kind not in kinds
    ]
    sizes = _for_each("shape", shapes, tensors)
    kinds_of = _for_each("dtype", dtypes or ["float32"], tensors)
    for name, shape, dtype in zip(tensors, sizes, kinds_of, strict=True):
        given[name] = _tensor(shape, dtype)
    if not any(isinstance(value, torch.Tensor) for value in given.values()):
        raise Refused(f"{called} has no tensor among its arguments")
    return {name: given[name] for name in parameters if name in given}


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Refused(f"{text}: expected NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _for_each(option: str, values: Sequence[str] | None, tensors: Sequence[str]) -> Sequence[str]:
    if not values:
        raise Refused(f"--{option} is needed for {', '.join(tensors)}: such as --shape 4096x1024")
    if len(values) == 1:
        return [values[0]] * len(tensors)
    if len(values) != len(tensors):
        raise Refused(
            f"--{option} is there {len(values)} times: give one for all tensors, or one for each "
            f"of {', '.join(tensors)}; numbers are NAME=VALUE"
        )
    return values


def _tensor(shape: str, dtype: str) -> torch.Tensor:
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise Refused(f"--shape {shape} is no shape: expected one like 4096x1024")
    if dtype not in _DTYPES:
        close = difflib.get_close_matches(dtype, _DTYPES, n=1)
        meant = f": did you mean {close[0]}?" if close else f": there are {', '.join(_DTYPES)}"
        raise Refused(f"--dtype {dtype} is unknown{meant}")
    kind: torch.dtype = getattr(torch, dtype)
    return torch.empty([int(size) for size in shape.split("x")], dtype=kind)
