"""GELU by its formula, as many models have it."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 16384 if device == "cuda" else 512
x = torch.randn(rows, 4096, device=device)


def step():
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


EXPECTED = "fusable"
