"""GELULinear: gelu(x)·Wᵀ + b."""

from __future__ import annotations

from torch import Tensor

from megafuse.nn.with_gelu import WithGELU
from megafuse.ops.gelu_linear import gelu_linear


class GELULinear(WithGELU):
    """gelu(x)·weightᵀ + bias: an nn.Linear with an nn.GELU before it.

    Arguments, parameters and initial values are those of nn.Linear; `approximate` is nn.GELU's.
    It is no nn.Linear itself: see LinearReLU. Where the layer before the GELU is linear too, `FFN`
    or `LinearGELU` is faster.
    """

    gelu_first = True

    def forward(self, input: Tensor) -> Tensor:
        return gelu_linear(input, self.weight, self.bias, self.approximate)
