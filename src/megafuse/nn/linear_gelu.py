"""LinearGELU: gelu(x·Wᵀ + b), the gelu in the GEMM's epilogue."""

from __future__ import annotations

from torch import Tensor, nn

from megafuse.nn import activation
from megafuse.nn.linear import readable, weight_of
from megafuse.nn.with_gelu import WithGELU
from megafuse.ops.linear_gelu import linear_gelu
from megafuse.ops.linear_relu import linear_relu


class LinearGELU(WithGELU):
    """gelu(x·weightᵀ + bias): an nn.Linear with an nn.GELU after it.

    Arguments, parameters and initial values are those of nn.Linear; `approximate` is nn.GELU's.
    It is no nn.Linear itself: see LinearReLU.
    """

    gelu_first = False

    def forward(self, input: Tensor) -> Tensor:
        return linear_gelu(input, self.weight, self.bias, self.approximate)


def linear_act(x: Tensor, linear: nn.Module, act: str) -> Tensor:
    """act(linear(x)) in one op, if `linear` is no more than its parameters."""
    if not readable(linear):
        return activation.FUNCTIONS[act](linear(x))
    weight, bias = weight_of(linear), linear.bias
    if act == "relu":
        return linear_relu(x, weight, bias)
    return linear_gelu(x, weight, bias, activation.APPROXIMATE[act])
