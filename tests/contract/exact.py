"""PyTorch in fp64 with the digits that its own kernels lose, for runs that count as exact.

gelu, erf form: x Φ(x) with Φ(x) = erfc(−x / √2) / 2. PyTorch has 1 + erf, which is 0 from x = −8.3
on, so that eager would look exact where it has lost every digit.

softmax: PyTorch adds a row up in as many lanes as a register has. On ARM these are two, and of
20,000 columns it is 6 to 16 eps off. `torch.sum` adds in pairs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = TypeVar("Function", bound=Callable[..., Any])

aten = torch.ops.aten


def exactly(function: Function) -> Function:
    """`function` with the formulas below for whatever it computes in fp64."""

    @functools.wraps(function)
    def run(*args: Any, **more: Any) -> Any:
        with _Exact():
            return function(*args, **more)

    return run  # type: ignore[return-value]


class _Exact(TorchDispatchMode):
    """Below autograd, so that the formulas of derivatives come by here too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = _FORMULAS.get(func)
        if formula is not None and args[0].dtype == torch.float64:
            found = formula(*args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))


def _normal(x: Tensor) -> Tensor:
    return torch.special.erfc(x * -math.sqrt(0.5)) / 2


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor | None:
    return x * _normal(x) if approximate == "none" else None


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor | None:
    if approximate != "none":
        return None
    return grad * (_normal(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    powers = torch.exp(x - x.amax(dim, keepdim=True)) if x.numel() else x
    return powers / powers.sum(dim, keepdim=True)


def _softmax_backward(grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    return out * (grad - (grad * out).sum(dim, keepdim=True))


_FORMULAS: dict[Any, Callable[..., Tensor | None]] = {
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten._softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward,
}
