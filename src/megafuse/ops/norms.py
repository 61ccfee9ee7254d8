"""What the norms share: the moments of each row that they keep, and gradients as plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def one_a_row(count: int, x: Tensor, *others: Tensor | None) -> list[Tensor]:
    """So many tensors of one number for each row of x, in the dtype that kernels compute in."""
    double = any(t is not None and t.dtype == torch.float64 for t in (x, *others))
    dtype = torch.float64 if double else torch.float32
    return [x.new_empty((*x.shape[:-1], 1), dtype=dtype) for _ in range(count)]


def layer_norm_vjp(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> list[Tensor]:
    """The gradients of x, weight and bias."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    centred = wide - wide.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    h = centred * scale
    g = grad * weight if weight is not None else grad.to(wide.dtype)
    dx = scale * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))
    return [dx, _over_rows(grad * h), _over_rows(grad)]


def rms_norm_vjp(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> list[Tensor]:
    """The gradients of x and weight."""
    wide = x.float() if x.dtype.itemsize < 4 else x
    scale = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    h = wide * scale
    g = grad * weight if weight is not None else grad.to(wide.dtype)
    dx = scale * (g - h * (g * h).mean(-1, keepdim=True))
    return [dx, _over_rows(grad * h)]


def _over_rows(t: Tensor) -> Tensor:
    rows = tuple(range(t.dim() - 1))
    return t.sum(rows) if rows else t
