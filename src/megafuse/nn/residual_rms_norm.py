"""ResidualRMSNorm: s = residual + dropout(x), and RMSNorm(s), in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.nn.dropout import dropout_of
from megafuse.nn.plain import plain
from megafuse.nn.rms_norm import epsilon
from megafuse.ops.residual_rms_norm import residual_rms_norm


class ResidualRMSNorm(nn.RMSNorm):
    """s = residual + dropout(x); returns (RMSNorm(s), s).

    Arguments, parameters and initial values are those of nn.RMSNorm. `dropout` acts in training
    only.
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        dropout = self.dropout
        if plain(dropout, nn.Dropout) and x.shape[-1:] == self.normalized_shape:
            eps = epsilon(self.eps, x)
            return residual_rms_norm(x, residual, self.weight, dropout.p, dropout.training, eps)
        s = residual + dropout(x)
        return super().forward(s), s

    @classmethod
    def from_torch(cls, norm: nn.Module, dropout: nn.Module | float = 0.0) -> ResidualRMSNorm:
        """From an nn.RMSNorm, and the nn.Dropout (or its p) before the sum."""
        what = "ResidualRMSNorm.from_torch"
        made = adopt(cls, expect(norm, what, nn.RMSNorm))
        made.dropout = dropout_of(dropout, norm, what)
        return made
