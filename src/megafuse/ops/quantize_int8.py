"""quantize_int8: float to int8 in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.ops.registry import op


@op(
    forward="QuantizeInt8<{F}, {S}, {divide}>",
    output_dtype="int8",
    flops=(6, 0),
    sample=lambda draw: (draw.full(), 0.05, 3.0),
)
def quantize_int8(x: Tensor, scale: Tensor | float, zero_point: Tensor | float) -> Tensor:
    """clamp(round(x / scale + zero_point), −128, 127) as int8, ties to even, PyTorch's bits

    `scale` and `zero_point` are numbers, or tensors that broadcast against x: one value per
    channel of an NCHW image is `scale.view(-1, 1, 1)`. NaN becomes 0.
    """
    return torch.clamp(torch.round(x / scale + zero_point), -128, 127).to(torch.int8)
