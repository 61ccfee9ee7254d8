"""GELULinear: gelu(x)·Wᵀ + b."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.nn.linear import linear_of
from megafuse.ops.gelu_linear import gelu_linear


class GELULinear(nn.Linear):
    """gelu(x)·weightᵀ + bias: an nn.Linear with an nn.GELU before it.

    Arguments, parameters and initial values are those of nn.Linear; `approximate` is nn.GELU's.
    Where the layer before the GELU is linear too, `FFN` or `LinearGELU` is the faster cut.
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
        return gelu_linear(input, self.weight, self.bias, self.approximate)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"

    @classmethod
    def from_torch(cls, module: nn.Module, approximate: str = "none") -> GELULinear:
        """From an nn.Linear, or an nn.Sequential of an nn.GELU and one, sharing the Parameters.

        `approximate` is for the first; an nn.GELU has its own.
        """
        if isinstance(module, nn.Sequential) and len(module) == 2:
            approximate = expect(module[0], "GELULinear.from_torch", nn.GELU).approximate
            module = module[1]
        made = adopt(cls, linear_of(module, "GELULinear.from_torch"))
        made.approximate = approximate
        return made

    def to_torch(self) -> nn.Sequential:
        """nn.Sequential(nn.GELU, nn.Linear) over the same Parameters."""
        linear = adopt(nn.Linear, self)
        del linear.__dict__["approximate"]
        return nn.Sequential(nn.GELU(self.approximate), linear).train(self.training)
