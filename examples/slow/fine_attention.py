"""Attention by PyTorch's own function, for 8 heads."""

import torch
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
batch, tokens = (8, 4096) if device == "cuda" else (1, 1024)
q, k, v = (torch.randn(batch, 8, tokens, 64, device=device, dtype=dtype) for _ in range(3))


def step():
    return F.scaled_dot_product_attention(q, k, v)


EXPECTED = "leave it"
