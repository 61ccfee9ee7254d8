"""The mean of the valid elements of a batch; a mask says which they are."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
elements = 1 << (24 if device == "cuda" else 21)
values = torch.randn(elements, device=device)
valid = torch.rand(elements, device=device) < 0.7


def step():
    return values[valid].mean()


EXPECTED = "synchronisation"
