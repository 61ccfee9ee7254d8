"""A block of a model, small and of every kind of step: a norm, a product, an activation, a sum."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 16


class Block(nn.Module):
    """x + gelu(linear(norm(x)))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.up(self.norm(x)))
