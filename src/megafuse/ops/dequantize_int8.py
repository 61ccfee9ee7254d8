"""dequantize_int8: int8 back to float in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.registry import Autograd, Pointwise, Signature, op


@op(
    kernel=Pointwise("DequantizeInt8<{F}>", "DequantizeInt8Backward<{F}>"),
    signature=Signature(any_dtype=("q",), dtype_like="scale"),
    autograd=Autograd(saves=("q", "scale", "zero_point"), grads={"scale": 0, "zero_point": 1}),
    flops=(2, 4),
    sample=lambda draw: (draw.integers(), draw.row(0.05), 3.0),
)
def dequantize_int8(q: Tensor, scale: Tensor | float, zero_point: Tensor | float) -> Tensor:
    """(q − zero_point)·scale, in scale's dtype (float32 where scale is a number)

    `scale` and `zero_point` are numbers, or tensors that broadcast against q.
    """
    dtype = scale.dtype if isinstance(scale, Tensor) else torch.float32
    return (q.to(dtype) - zero_point) * scale
