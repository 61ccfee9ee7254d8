"""LinearReLU: relu(x·Wᵀ + b), the relu in the GEMM's epilogue."""

from __future__ import annotations

from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.nn.linear import readable_linear
from megafuse.nn.linear_shaped import LinearShaped
from megafuse.ops.linear_relu import linear_relu


class LinearReLU(LinearShaped):
    """relu(x·weightᵀ + bias): an nn.Linear with an nn.ReLU after it.

    Arguments, parameters and initial values are those of nn.Linear. It is no nn.Linear itself: an
    adapter around one adds its own product to the result, and would do so behind the relu.
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear_relu(input, self.weight, self.bias)

    @classmethod
    def from_torch(cls, module: nn.Module) -> LinearReLU:
        """From an nn.Linear, or an nn.Sequential of one and an nn.ReLU, sharing the Parameters."""
        if isinstance(module, nn.Sequential) and len(module) == 2:
            expect(module[1], "LinearReLU.from_torch", nn.ReLU)
            module = module[0]
        return adopt(cls, readable_linear(module, "LinearReLU.from_torch"))

    def to_torch(self) -> nn.Sequential:
        """nn.Sequential(nn.Linear, nn.ReLU) over the same Parameters."""
        return nn.Sequential(adopt(nn.Linear, self), nn.ReLU()).train(self.training)
