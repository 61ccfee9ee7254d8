"""Three operations that `megafuse.fuse` made one kernel of."""

import torch

import megafuse as mf

device = "cuda" if torch.cuda.is_available() else "cpu"
rows = 65536 if device == "cuda" else 4096
x, y = torch.randn(2, rows, 2048, device=device)


@mf.fuse
def gated(x, y):
    return x * torch.sigmoid(y) + y


def step():
    return gated(x, y)


EXPECTED = "leave it"
