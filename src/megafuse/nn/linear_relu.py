"""LinearReLU: relu(x·Wᵀ + b), the relu in the GEMM's epilogue."""

from __future__ import annotations

from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.nn.linear import linear_of
from megafuse.ops.linear_relu import linear_relu


class LinearReLU(nn.Linear):
    """relu(x·weightᵀ + bias): an nn.Linear with an nn.ReLU after it.

    Arguments, parameters and initial values are those of nn.Linear.
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear_relu(input, self.weight, self.bias)

    @classmethod
    def from_torch(cls, module: nn.Module) -> LinearReLU:
        """From an nn.Linear, or an nn.Sequential of one and an nn.ReLU, sharing the Parameters."""
        if isinstance(module, nn.Sequential) and len(module) == 2:
            expect(module[1], "LinearReLU.from_torch", nn.ReLU)
            module = module[0]
        return adopt(cls, linear_of(module, "LinearReLU.from_torch"))

    def to_torch(self) -> nn.Sequential:
        """nn.Sequential(nn.Linear, nn.ReLU) over the same Parameters."""
        return nn.Sequential(adopt(nn.Linear, self), nn.ReLU()).train(self.training)
