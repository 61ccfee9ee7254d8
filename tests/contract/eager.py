"""Eager's 16-bit products on the CPU, sooner: in float32 and rounded once.

A CPU without 16-bit instructions takes a minute for what it does in float32 in a fraction of a
second, and the suite waits for eager much longer than for us. Eager adds in float32 as well, so
that these are its products but for the order of the terms, and never worse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = TypeVar("Function", bound=Callable[..., Any])

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
NARROW = (torch.float16, torch.bfloat16)


def eagerly(function: Function) -> Function:
    """`function`, of PyTorch's ops alone, with such products on the CPU."""

    @functools.wraps(function)
    def run(*args: Any, **more: Any) -> Any:
        with _Widened():
            return function(*args, **more)

    return run  # type: ignore[return-value]


class _Widened(TorchDispatchMode):
    """Below autograd, so that the backward's products come by here too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = args[0].dtype if func in PRODUCTS else None
        if dtype in NARROW and args[0].is_cpu:
            wide = [a.float() if isinstance(a, Tensor) else a for a in args]
            return func(*wide, **(kwargs or {})).to(dtype)
        return func(*args, **(kwargs or {}))
