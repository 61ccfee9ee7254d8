"""bias_act: act(x + bias) in one pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import op

_ACTIVATIONS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "relu": ("mf::Relu", F.relu),
    "gelu": ("mf::Gelu", F.gelu),
    "gelu_tanh": ("mf::GeluTanh", lambda x: F.gelu(x, approximate="tanh")),
    "silu": ("mf::Silu", F.silu),
    "sigmoid": ("mf::Sigmoid", torch.sigmoid),
    "tanh": ("mf::Tanh", torch.tanh),
}


@op(
    forward="BiasAct<{F}, {act}>",
    backward="BiasActBackward<{F}, {act}>",
    choices={"act": {name: word for name, (word, _) in _ACTIVATIONS.items()}},
    saves=("x", "bias"),
    grads={"x": 0, "bias": 0},
    flops=(13, 21),
    sample=lambda draw: (draw.full(), draw.row(), "gelu"),
)
def bias_act(x: Tensor, bias: Tensor, act: str = "gelu") -> Tensor:
    """act(x + bias)

    `act` is relu, gelu (erf form), gelu_tanh, silu, sigmoid or tanh.
    """
    return _ACTIVATIONS[act][1](x + bias)
