"""gelu_scale: gelu(x)·scale in one pass."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.codegen.activations import ACTIVATIONS, GELU
from megafuse.registry import Autograd, Pointwise, Signature, op


@op(
    kernel=Pointwise("GeluScale<{F}, {approximate}>", "GeluScaleBackward<{F}, {approximate}>"),
    signature=Signature(
        choices={"approximate": {how: ACTIVATIONS[act].word for how, act in GELU.items()}}
    ),
    autograd=Autograd(saves=("x",), grads={"x": 0}),
    flops=(12, 20),
    sample=lambda draw: (draw.full(), 1.7, "tanh"),
)
def gelu_scale(x: Tensor, scale: float, approximate: str = "tanh") -> Tensor:
    """gelu(x)·scale

    `approximate` is "tanh", or "none" for the erf form, as in torch.nn.functional.gelu.
    """
    return F.gelu(x, approximate=approximate) * scale
