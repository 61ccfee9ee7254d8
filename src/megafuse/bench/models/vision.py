"""ResNet-50 and ConvNeXt-tiny in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 1000


class Bottleneck(nn.Module):
    """x + (1×1 → 3×3 → 1×1), a BatchNorm after each, ReLU."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.narrow = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.widen = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.narrow(x)))
        y = F.relu(self.norm2(self.spatial(y)))
        return F.relu(self.norm3(self.widen(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 with blocks (3, 4, 6, 3) and width 64."""

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            inner = width << stage
            for block in range(count):
                stages.append(Bottleneck(channels, inner, 2 if stage and not block else 1))
                channels = 4 * inner
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(pixel_values)))
        x = self.blocks(F.max_pool2d(x, 3, 2, padding=1))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of a picture."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """x + scale · down(gelu(up(norm(depthwise 7×7)))), channels last inside."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class ConvNeXt(nn.Module):
    """ConvNeXt-tiny with blocks (3, 3, 9, 3) and widths (96, 192, 384, 768)."""

    def __init__(
        self, blocks: Sequence[int] = (3, 3, 9, 3), widths: Sequence[int] = (96, 192, 384, 768)
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6)]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            if stage:
                before = widths[stage - 1]
                layers += [ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, 2)]
            layers += [ConvNeXtBlock(width) for _ in range(count)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.layers(pixel_values).mean((2, 3))
        return self.head(self.norm(x))  # type: ignore[no-any-return]
