"""PyTorch's 16-bit products on a CPU without instructions for them: in float32, and rounded once.

There PyTorch takes seconds for what it does in float32 in milliseconds: on a Neoverse-N1 1.4 s for
the attention of 1,026 tokens in one small layer. It adds in float32 as well, so these are its
results but for the order of the terms, and never worse.

    with widened_where_slow(x):
        model(x)
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from megafuse.runtime import loader

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_HALVES = (torch.float16, torch.bfloat16)


class Widened(TorchDispatchMode):
    """Products of 16 bits on the CPU in float32, and `attention` too where it is wanted. Below
    autograd, so that the backward's products come by here as well; attention's is PyTorch's."""

    def __init__(self, attention: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._attention = attention

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        attends = self._attention and func is ATTENTION
        dtype = args[0].dtype if attends or func in PRODUCTS else None
        if dtype not in _HALVES or not args[0].is_cpu:
            return func(*args, **kwargs)
        made = func(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})
        if attends:
            out, sums = made
            return out.to(dtype), sums
        return made.to(dtype)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


def widened_where_slow(like: Tensor) -> AbstractContextManager[Any]:
    """For code that runs forward on tensors of this device and dtype."""
    if not like.is_cpu or like.dtype not in _HALVES:
        return nullcontext()
    host = loader.load()
    if host is None or host.library_multiplies(like.dtype):
        return nullcontext()
    return Widened(attention=True)
