"""The model of the exercise: gated MLPs with a residual around each, two of them a level deeper."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, HIDDEN = 64, 2048


class Gate(nn.Module):
    """x·sigmoid(scale·x + shift), as PyTorch does it: four operations."""

    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.scale * x + self.shift)


class Layer(nn.Module):
    """x + down(gate(up(norm(x))))"""

    def __init__(self, scale: float, shift: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.gate = Gate(scale, shift)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.gate(self.up(self.norm(x))))
        return out


def model(device: str) -> nn.Sequential:
    """Three layers; every gate has numbers of its own."""
    layers = [Layer(1.0 + 0.2 * i, 0.3 - 0.4 * i) for i in range(3)]
    made = nn.Sequential(layers[0], nn.Sequential(*layers[1:]), nn.Linear(WIDTH, 10))
    return made.to(device).eval()
