"""A compiled function over texts of different lengths, one after the other."""

import itertools

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
lengths = itertools.count(100)
torch._dynamo.config.recompile_limit = 1000  # "it stopped compiling at 8"


@torch.compile(dynamic=False, backend="aot_eager")
def normalised(x):
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def step():
    return normalised(torch.randn(64, next(lengths), device=device))


EXPECTED = "recompilation"
