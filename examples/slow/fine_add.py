"""The sum of two large tensors, into memory that is there already."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
elements = 1 << (28 if device == "cuda" else 23)
x, y, out = torch.randn(3, elements, device=device)


def step():
    return torch.add(x, y, out=out)


EXPECTED = "leave it"
