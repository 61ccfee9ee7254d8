"""Scores documents: each is a vector that goes through one layer."""

import torch
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
width = 4096 if device == "cuda" else 1024
count = 64 if device == "cuda" else 32
documents = torch.randn(count, width, device=device)
weight = torch.randn(width, width, device=device)


def step():
    return torch.stack([F.linear(document, weight) for document in documents])


EXPECTED = "loop over the batch"
