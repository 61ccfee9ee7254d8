"""A recurrence over 100 time steps of 64 numbers each: h ← h·decay + input."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = torch.randn(100, 64, device=device).unbind()
decay = torch.rand(64, device=device)


def step():
    h = torch.zeros_like(decay)
    for value in inputs:
        h = h * decay
        h = h + value
    return h


EXPECTED = "launch-bound"
