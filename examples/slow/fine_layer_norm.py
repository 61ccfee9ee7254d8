"""Layer normalisation by PyTorch's own function."""

import torch
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 65536 if device == "cuda" else 4096
x = torch.randn(rows, 2048, device=device)
weight, bias = torch.randn(2, 2048, device=device)


def step():
    return F.layer_norm(x, (2048,), weight, bias)


EXPECTED = "leave it"
