"""One request at a time through a large network."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
width = 8192 if device == "cuda" else 2048
layers = [nn.Linear(width, width, bias=False) for _ in range(4)]
model = nn.Sequential(*layers).to(device, dtype).requires_grad_(False)
request = torch.randn(1, width, device=device, dtype=dtype)


def step():
    return model(request)


EXPECTED = "tiny batch"
