"""Training on images that are prepared one at a time in Python, as many projects do.

megafuse diagnose examples/real/images.py:before
megafuse diagnose examples/real/images.py:after
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, SIZE, CROP = 64, 72, 64
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

images = torch.randint(256, (512, 3, SIZE, SIZE), dtype=torch.uint8)
labels = torch.randint(10, (512,))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
).to(DEVICE)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


class Prepared(Dataset[tuple[Tensor, int]]):
    """Each image cropped, flipped and normalised by itself."""

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = images[index % len(images)]
        top, left = random.randrange(SIZE - CROP), random.randrange(SIZE - CROP)
        image = image[:, top : top + CROP, left : left + CROP].float() / 255
        if random.random() < 0.5:
            image = image.flip(-1)
        channels = zip(image, MEAN, DEVIATION, strict=True)
        return torch.stack([(c - m) / d for c, m, d in channels]), int(labels[index % len(labels)])


loader = iter(DataLoader(Prepared(), batch_size=BATCH))


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The same for a whole batch: bytes travel to the device, arithmetic happens there."""
    mean = torch.tensor(MEAN, device=DEVICE).view(1, 3, 1, 1) * 255
    scale = 1 / (torch.tensor(DEVIATION, device=DEVICE).view(1, 3, 1, 1) * 255)
    while True:
        at = torch.randint(len(images), (BATCH,))
        top, left = (int(n) for n in torch.randint(SIZE - CROP, (2,)))
        chosen = images[at, :, top : top + CROP, left : left + CROP].to(DEVICE)
        flipped = torch.rand(BATCH, 1, 1, 1, device=DEVICE) < 0.5
        yield torch.where(flipped, chosen.flip(-1), chosen).sub(mean).mul_(scale), labels[at]


ready = batches()


def train(x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)).backward()
    optimizer.step()


def before() -> None:
    train(*next(loader))


def after() -> None:
    train(*next(ready))
