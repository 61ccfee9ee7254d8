"""add_mul_add: (x + y)·z + w in one pass."""

from __future__ import annotations

from torch import Tensor

from megafuse.registry import Autograd, Pointwise, op


@op(
    kernel=Pointwise("AddMulAdd<{F}>", "AddMulAddBackward<{F}>"),
    autograd=Autograd(
        saves=("x", "y", "z"),
        grads={"x": 0, "y": 0, "z": 1, "w": 2},
        passthrough=("w",),
        vjp=lambda grad, x, y, z: (grad * z, grad * z, grad * (x + y), grad),
    ),
    flops=(3, 3),
    sample=lambda draw: (draw.full(), draw.full(), draw.full(), draw.full()),
)
def add_mul_add(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """(x + y)·z + w"""
    return (x + y) * z + w
