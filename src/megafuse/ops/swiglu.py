"""swiglu: silu(gate)·up in one pass."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Pointwise, op


@op(
    kernel=Pointwise("Swiglu<{F}>", "SwigluBackward<{F}>"),
    autograd=Autograd(saves=("gate", "up"), grads={"gate": 0, "up": 1}),
    flops=(11, 16),
    sample=lambda draw: (draw.full(), draw.full()),
)
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up"""
    return F.silu(gate) * up
