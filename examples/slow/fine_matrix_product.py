"""A product of two large matrices, by the library."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
size, dtype = (8192, torch.bfloat16) if device == "cuda" else (1024, torch.float32)
a, b = torch.randn(2, size, size, device=device, dtype=dtype)


def step():
    return a @ b


EXPECTED = "leave it"
