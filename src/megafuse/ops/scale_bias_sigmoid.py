"""scale_bias_sigmoid: sigmoid(x·w + b) in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.registry import Autograd, Pointwise, op


@op(
    kernel=Pointwise("ScaleBiasSigmoid<{F}>", "ScaleBiasSigmoidBackward<{F}>"),
    autograd=Autograd(saves=("x", "w", "b"), grads={"x": 0, "w": 1, "b": 2}),
    flops=(12, 17),
    sample=lambda draw: (draw.full(), draw.row(), draw.row()),
)
def scale_bias_sigmoid(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """sigmoid(x·w + b)"""
    return torch.sigmoid(x * w + b)
