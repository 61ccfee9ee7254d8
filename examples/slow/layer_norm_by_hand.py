"""Normalises each row of a matrix: mean 0, variance 1, then a scale and a shift."""

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 16384 if device == "cuda" else 2048
x = torch.randn(rows, 2048, device=device)
weight = torch.randn(2048, device=device)
bias = torch.randn(2048, device=device)


def step():
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5) * weight + bias


EXPECTED = "fusable"
