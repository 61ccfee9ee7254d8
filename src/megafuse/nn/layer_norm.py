"""LayerNorm: (x − mean) / √(var + eps)·weight + bias over the last dimension."""

from __future__ import annotations

from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.ops.layer_norm import layer_norm


class LayerNorm(nn.LayerNorm):
    """(x − mean) / √(var + eps)·weight + bias: an nn.LayerNorm, in one kernel.

    Arguments, parameters and initial values are those of nn.LayerNorm. A `normalized_shape` of
    several dimensions runs torch's own kernel: the op's rows are the last dimension.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[-1:] != self.normalized_shape:
            return super().forward(input)  # several dimensions, or the wrong size: torch's error
        return layer_norm(input, self.weight, self.bias, self.eps)

    @classmethod
    def from_torch(cls, module: nn.Module) -> LayerNorm:
        """From an nn.LayerNorm; it shares the Parameters."""
        return adopt(cls, expect(module, "LayerNorm.from_torch", nn.LayerNorm))

    def to_torch(self) -> nn.LayerNorm:
        """An nn.LayerNorm over the same Parameters."""
        return adopt(nn.LayerNorm, self)
