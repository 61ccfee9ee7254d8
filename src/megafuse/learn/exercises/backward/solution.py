"""Exercise 7: swiglu with a backward of its own."""

from typing import Any

import torch
from torch import Tensor

import megafuse as mf


class Swiglu(torch.autograd.Function):
    """silu(gate) * up"""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return mf.swiglu(gate, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        slope = s + gate * s * (1 - s)
        return grad * up * slope, grad * gate * s


swiglu = Swiglu.apply
