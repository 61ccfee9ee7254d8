"""Forward and backward of one large layer; the gradients are set to zero before."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
rows, width = (512, 8192) if device == "cuda" else (64, 2048)
model = nn.Linear(width, width, bias=False, device=device, dtype=dtype)
batch = torch.randn(rows, width, device=device, dtype=dtype)


def step():
    model.zero_grad(set_to_none=False)
    model(batch).sum().backward()


EXPECTED = "gradients zeroed by writing"
