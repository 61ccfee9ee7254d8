"""Trains a small network for eight batches and keeps a record of every loss."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
rows, width = (2048, 4096) if device == "cuda" else (64, 256)
batches = torch.randn(8, rows, width, device=device, dtype=dtype)
layers = nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
model = nn.Sequential(*layers).to(device, dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
history = []


def step():
    history.clear()
    for batch in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        history.append(loss.item())


EXPECTED = "synchronisation"
# A CPU has nothing to wait for.
EXPECTED_ON_CPU = "leave it"
