"""A batch through a layer whose weight is stored as [in, out]."""

import torch
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
width, dtype = (8192, torch.bfloat16) if device == "cuda" else (2048, torch.float32)
x = torch.randn(64, width, device=device, dtype=dtype)
weight = torch.randn(width, width, device=device, dtype=dtype)


def step():
    return F.linear(x, weight.t().contiguous())


EXPECTED = "hidden copy"
