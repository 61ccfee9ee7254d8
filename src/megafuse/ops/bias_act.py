"""bias_act: act(x + bias) in one pass."""

from __future__ import annotations

from torch import Tensor

from megafuse.codegen.activations import ACTIVATIONS, words
from megafuse.registry import Autograd, Pointwise, Signature, op


@op(
    kernel=Pointwise("BiasAct<{F}, {act}>", "BiasActBackward<{F}, {act}>"),
    signature=Signature(choices={"act": words()}),
    autograd=Autograd(saves=("x", "bias"), grads={"x": 0, "bias": 0}),
    flops=(13, 21),
    sample=lambda draw: (draw.full(), draw.row(), "gelu"),
)
def bias_act(x: Tensor, bias: Tensor, act: str = "gelu") -> Tensor:
    """act(x + bias)

    `act` is relu, gelu (erf form), gelu_tanh, silu, sigmoid or tanh.
    """
    return ACTIVATIONS[act].torch(x + bias)
