"""Adds positions to a batch of embeddings from a table."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = 8192 if device == "cuda" else 2048
embedded = torch.randn(4, tokens, 1024, device=device)
positions = torch.randn(tokens, 1024)


def step():
    return embedded + positions.to(device)


EXPECTED = "hidden copy"
# There is nothing to move on a CPU.
EXPECTED_ON_CPU = "leave it"
