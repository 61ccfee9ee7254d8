"""A block of a diffusion model's U-Net in plain torch: residual, self-attention, residual, down."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x))) + time)))"""

    def __init__(self, channels: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(time, channels)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(y)))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Every place of the picture attends to every other."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(groups, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        places = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(places).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(y).transpose(1, 2).unflatten(2, x.shape[2:])  # type: ignore[no-any-return]


class UNetBlock(nn.Module):
    """The first level's block of a Stable Diffusion U-Net has 320 channels and 8 heads."""

    def __init__(self, channels: int = 320, heads: int = 8, groups: int = 32) -> None:
        super().__init__()
        time = 4 * channels
        self.first = Residual(channels, time, groups)
        self.attention = SelfAttention(channels, heads, groups)
        self.second = Residual(channels, time, groups)
        self.down = nn.Conv2d(channels, channels, 3, 2, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.attention(self.first(x, time))
        return self.down(self.second(x, time))  # type: ignore[no-any-return]
