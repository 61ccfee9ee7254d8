"""Scores a small network on eight batches and keeps a record of every loss."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
rows, width = (4096, 4096) if device == "cuda" else (64, 256)
batches = torch.randn(8, rows, width, device=device, dtype=dtype)
layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
model = nn.Sequential(*layers).to(device, dtype)
history = []


@torch.no_grad()
def step():
    history.clear()
    for batch in batches:
        loss = nn.functional.mse_loss(model(batch), batch)
        history.append(loss.item())


EXPECTED = "synchronisation"
# A CPU has nothing to wait for.
EXPECTED_ON_CPU = "leave it"
