"""examples/slow/naive_linear_relu_cuda.py after its diagnosis: the library multiplies, and adds the
bias and takes the ReLU while the product is still in registers. Needs an NVIDIA GPU.

megafuse diagnose examples/slow/naive_linear_relu_cuda.py:step
megafuse diagnose examples/real/linear_relu_cuda.py:step
"""

import torch

import megafuse as mf

if not torch.cuda.is_available():
    raise SystemExit("linear_relu_cuda.py needs an NVIDIA GPU")

x = torch.randn(2048, 1024, device="cuda")
weight = torch.randn(4096, 1024, device="cuda") / 1024**0.5
bias = torch.randn(4096, device="cuda")


def step() -> torch.Tensor:
    return mf.linear_relu(x, weight, bias)
