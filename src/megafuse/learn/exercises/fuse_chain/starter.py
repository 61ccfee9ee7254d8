"""Exercise 4: the same result in two operations."""

from torch import Tensor
from torch.nn import functional as F


def block(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    scale: Tensor,
    shift: Tensor,
) -> Tensor:
    h = x + bias
    h = F.gelu(h)
    h = h + residual
    h = h * scale
    return h + shift
