"""LinearGELU: gelu(x·Wᵀ + b), the gelu in the GEMM's epilogue."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn import activation
from megafuse.nn.adopt import adopt, expect
from megafuse.nn.linear import LINEAR, linear_of
from megafuse.nn.plain import plain
from megafuse.ops.linear_gelu import linear_gelu
from megafuse.ops.linear_relu import linear_relu


class LinearGELU(nn.Linear):
    """gelu(x·weightᵀ + bias): an nn.Linear with an nn.GELU after it.

    Arguments, parameters and initial values are those of nn.Linear; `approximate` is nn.GELU's.
    """

    approximate: str

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return linear_gelu(input, self.weight, self.bias, self.approximate)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"

    @classmethod
    def from_torch(cls, module: nn.Module, approximate: str = "none") -> LinearGELU:
        """From an nn.Linear, or an nn.Sequential of one and an nn.GELU, sharing the Parameters.

        `approximate` is for the first; an nn.GELU has its own.
        """
        if isinstance(module, nn.Sequential) and len(module) == 2:
            approximate = expect(module[1], "LinearGELU.from_torch", nn.GELU).approximate
            module = module[0]
        made = adopt(cls, linear_of(module, "LinearGELU.from_torch"))
        made.approximate = approximate
        return made

    def to_torch(self) -> nn.Sequential:
        """nn.Sequential(nn.Linear, nn.GELU) over the same Parameters."""
        linear = adopt(nn.Linear, self)
        del linear.__dict__["approximate"]
        return nn.Sequential(linear, nn.GELU(self.approximate)).train(self.training)


def linear_act(x: Tensor, linear: nn.Module, act: str) -> Tensor:
    """act(linear(x)) in one op, if `linear` is no more than its parameters."""
    if not plain(linear, *LINEAR):
        return activation.FUNCTIONS[act](linear(x))
    weight, bias = linear.weight, linear.bias
    if act == "relu":
        return linear_relu(x, weight, bias)
    return linear_gelu(x, weight, bias, activation.APPROXIMATE[act])
