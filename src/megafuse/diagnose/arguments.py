"""What is typed after `megafuse diagnose`: a callable, and inputs for it."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from megafuse.bench.contenders import Unknown, load
from megafuse.diagnose.subject import Refused

_DTYPES = ("float32", "bfloat16", "float16", "float64", "int64")


def loaded(spec: str) -> Any:
    """train.py:step, package.module:Model; a class of modules is made without arguments."""
    if ":" not in spec:
        raise Refused(f"{spec} names no function: write {spec}:function")
    try:
        found: Any = load(spec)
    except Unknown as error:
        raise Refused(str(error)) from None
    if isinstance(found, type) and issubclass(found, nn.Module):
        try:
            return found()
        except Exception as error:
            raise Refused(
                f"{spec} is a class that could not be made without arguments "
                f"({type(error).__name__}: {error}): write a function that returns it, and call "
                "that in a step"
            ) from None
    return found


def inputs(function: Any, shapes: Sequence[str], dtype: str, device: str) -> list[torch.Tensor]:
    """Random tensors of these shapes: 8x512x768, or 8x512:int64 for indices."""
    if not shapes:
        missing = _required(function)
        if missing:
            raise Refused(
                f"it needs {', '.join(missing)}: give each a shape, as in --input 8x512x768, or "
                "8x512:int64 for indices"
            )
    return [_tensor(text, dtype, device) for text in shapes]


def placed(function: Any, dtype: str, device: str) -> Any:
    """A module on the device and in the dtype that were asked for."""
    if not isinstance(function, nn.Module):
        return function
    moved = function.to(device)
    return moved if dtype == "float32" else moved.to(getattr(torch, dtype))


def _required(function: Any) -> list[str]:
    plain: Callable[..., Any] = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(plain).parameters.values()
    except (TypeError, ValueError):
        return []
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in starred]


def _tensor(text: str, dtype: str, device: str) -> torch.Tensor:
    sizes, _, own = text.partition(":")
    kind = own or dtype
    if not re.fullmatch(r"\d+(x\d+)*", sizes):
        raise Refused(f"--input {text} is no shape: expected one like 8x512x768")
    if kind not in _DTYPES:
        raise Refused(f"{kind} is no dtype of an input: there are {', '.join(_DTYPES)}")
    shape = [int(n) for n in sizes.split("x")]
    if math.prod(shape) * 8 > 1 << 40:
        raise Refused(f"--input {text} is more than a terabyte")
    if kind == "int64":
        return torch.randint(0, 2, shape, device=device)
    return torch.randn(shape, device=device).to(getattr(torch, kind))
