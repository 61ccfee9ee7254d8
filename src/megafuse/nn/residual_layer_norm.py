"""ResidualLayerNorm: s = residual + dropout(x), and LN(s), in one kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn.adopt import adopt, expect
from megafuse.nn.dropout import dropout_of
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.plain import plain
from megafuse.ops.residual_layer_norm import residual_layer_norm


class ResidualLayerNorm(nn.LayerNorm):
    """s = residual + dropout(x); returns (LN(s), s).

    Arguments, parameters and initial values are those of nn.LayerNorm. A pre-norm block goes on
    with both results, a post-norm block with the first. `dropout` acts in training only.
    """

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if plain(self.dropout, nn.Dropout) and x.shape[-1:] == self.normalized_shape:
            return _fused(x, residual, self, self.dropout)
        s = residual + self.dropout(x)
        return super().forward(s), s

    @classmethod
    def from_torch(cls, norm: nn.Module, dropout: nn.Module | float = 0.0) -> ResidualLayerNorm:
        """From an nn.LayerNorm, and the nn.Dropout (or its p) before the sum."""
        what = "ResidualLayerNorm.from_torch"
        made = adopt(cls, expect(norm, what, nn.LayerNorm))
        made.dropout = dropout_of(dropout, norm, what)
        return made


def residual_norm(
    x: Tensor, residual: Tensor, norm: nn.Module, dropout: nn.Module | None
) -> tuple[Tensor, Tensor]:
    """s = residual + dropout(x); (norm(s), s): in one op, if neither does more than its class."""
    if (
        plain(norm, nn.LayerNorm, LayerNorm)
        and (dropout is None or plain(dropout, nn.Dropout))
        and x.shape[-1:] == norm.normalized_shape
    ):
        return _fused(x, residual, norm, dropout)
    s = residual + (x if dropout is None else dropout(x))
    return norm(s), s


def _fused(
    x: Tensor, residual: Tensor, norm: nn.LayerNorm, dropout: nn.Dropout | None
) -> tuple[Tensor, Tensor]:
    p, training = (0.0, False) if dropout is None else (dropout.p, dropout.training)
    return residual_layer_norm(x, residual, norm.weight, norm.bias, p, training, norm.eps)
