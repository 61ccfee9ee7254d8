"""Programs in float64, on the CPU: what results are held against.

CUDA's float64 kernels of hardsigmoid and hardswish have 1/6 in float32; so has the gradient of
hardsigmoid on the CPU, which has a formula here. So has gelu: PyTorch's 1 + tanh(u) is 0 in float64
from u = -19 on, where gelu is -1e-16 and less. Our kernels have that tail, and gelu(x).bool() of it
is True. The gradient of elu at NaN is NaN in the CPU's vectors, and the incoming one in elements
behind the last whole vector, on CUDA and in torch.compile; the formula here has the latter. The
mean of infinities beside their variance is NaN or not as the layout has it: here it is `mean`'s.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Exact(TorchDispatchMode):
    """Below autograd, where the formulas of derivatives come by. Tensors that are made without a
    dtype are float64's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before = torch.get_default_dtype()

    def __enter__(self) -> Exact:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *what: Any) -> None:
        super().__exit__(*what)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.hardsigmoid_backward.default:
            gradient, x = args
            return torch.where((x > -3) & (x < 3), gradient / 6, 0.0)
        if func is aten.elu_backward.default:
            return _elu_backward(*args)
        if func is aten.gelu.default:
            return _gelu(*args, **(kwargs or {}))
        if func in (aten.var_mean.correction, aten.std_mean.correction):
            return _spread_and_mean(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    slope = x + alpha * scale if is_result else alpha * scale * (x * input_scale).exp()
    return grad * torch.where(x <= 0, input_scale * slope, scale)


def _spread_and_mean(
    func: Any, x: Tensor, dim: Any = None, *, keepdim: bool = False, **given: Any
) -> tuple[Tensor, Tensor]:
    return func(x, dim, keepdim=keepdim, **given)[0], x.mean(dim, keepdim=keepdim)


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Without the difference of what is nearly equal; −∞ · 0 is NaN, as in PyTorch's."""
    if approximate == "none":
        return x * torch.erfc(-x * math.sqrt(0.5)) / 2
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


def widened(value: Any) -> Any:
    """An argument in float64, where it is a float."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)
