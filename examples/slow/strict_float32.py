"""A large linear layer in float32, with PyTorch's settings as they are."""

import torch
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
size = 4096 if device == "cuda" else 1024
x, weight = torch.randn(2, size, size, device=device)


def step():
    return F.linear(x, weight)


EXPECTED = "strict float32 product"
# A CPU has no other way: float32 is what its library is best at.
EXPECTED_ON_CPU = "leave it"
