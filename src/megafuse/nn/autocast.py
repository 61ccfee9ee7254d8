"""Under autocast the residual stream stays in its own dtype, float32, as in torch's modules."""

from __future__ import annotations

import torch
from torch import Tensor


def one_dtype(x: Tensor, residual: Tensor) -> bool:
    """Whether a GEMM op may add the residual: under autocast it would round it down first."""
    kind = x.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return x.dtype == residual.dtype and not autocast
