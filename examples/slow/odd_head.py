"""The last layer of a language model: 50,257 scores for every token."""

import torch
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16 if device == "cuda" else torch.float32
tokens, width = (8192, 768) if device == "cuda" else (64, 256)
hidden = torch.randn(tokens, width, device=device, dtype=dtype)
head = torch.randn(50257, width, device=device, dtype=dtype)


def step():
    return F.linear(hidden, head)


EXPECTED = "unaligned product"
# The CPU's library packs what it reads, and any size is as good as another.
EXPECTED_ON_CPU = "leave it"
