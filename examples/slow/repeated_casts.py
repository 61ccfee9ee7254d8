"""Eight small batches through a frozen layer, under autocast."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
width = 8192 if device == "cuda" else 2048
layer = nn.Linear(width, width, bias=False).to(device).requires_grad_(False)
rows = 64 if device == "cuda" else 4
batches = torch.randn(8, rows, width, device=device)


def step():
    total = 0
    for batch in batches:
        with torch.autocast(device, torch.bfloat16):
            total = total + layer(batch).sum()
    return total


EXPECTED = "repeated casts"
