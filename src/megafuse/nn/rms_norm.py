"""RMSNorm: x / √(mean(x²) + eps)·weight over the last dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.ops.rms_norm import rms_norm


class RMSNorm(nn.RMSNorm):
    """x / √(mean(x²) + eps)·weight: an nn.RMSNorm, in one kernel.

    Arguments, parameters and initial values are those of nn.RMSNorm, `eps=None` included. A
    `normalized_shape` of several dimensions runs torch's own kernels.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[-1:] != self.normalized_shape:
            return super().forward(input)  # several dimensions, or the wrong size: torch's error
        return rms_norm(input, self.weight, epsilon(self.eps, input))

    @classmethod
    def from_torch(cls, module: nn.Module) -> RMSNorm:
        """From an nn.RMSNorm; it shares the Parameter."""
        return adopt(cls, expect(module, "RMSNorm.from_torch", nn.RMSNorm))

    def to_torch(self) -> nn.RMSNorm:
        """An nn.RMSNorm over the same Parameter."""
        return adopt(nn.RMSNorm, self)


def epsilon(eps: float | None, input: Tensor) -> float:
    """nn.RMSNorm's default: the spacing at 1 of the type that sums are kept in."""
    if eps is not None:
        return eps
    return torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
