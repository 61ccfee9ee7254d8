"""SwiGLUFFN: (silu(x·Wgᵀ)·(x·Wuᵀ))·Wdᵀ, the feed-forward half of a Llama block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn.dropout import dropout_of, residual_dropout
from megafuse.nn.linear import LINEAR, linear_of
from megafuse.nn.plain import plain
from megafuse.ops.swiglu import swiglu
from megafuse.ops.swiglu_ffn import swiglu_ffn


class SwiGLUFFN(nn.Module):
    """dropout(down_proj(silu(gate_proj(x))·up_proj(x))), plus a residual where one is given.

    The names are Llama's, and as there the layers have no bias unless told.
    """

    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module
    dropout: nn.Module

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias, device, dtype)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias, device, dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        gate, up, down, dropout = self.gate_proj, self.up_proj, self.down_proj, self.dropout
        if (
            plain(gate, *LINEAR)
            and plain(up, *LINEAR)
            and plain(down, *LINEAR)
            and plain(dropout, nn.Dropout)
        ):
            return swiglu_ffn(
                x,
                gate.weight,
                up.weight,
                down.weight,
                gate.bias,
                up.bias,
                down.bias,
                residual,
                dropout.p,
                dropout.training,
            )
        out: Tensor = down(swiglu(gate(x), up(x)))
        return dropout(out) if residual is None else residual_dropout(out, residual, dropout)

    @classmethod
    def from_torch(
        cls,
        gate_proj: nn.Module,
        up_proj: nn.Module,
        down_proj: nn.Module,
        dropout: nn.Module | float = 0.0,
    ) -> SwiGLUFFN:
        """From the three nn.Linear layers, which it holds; torch has no module for the whole."""
        what = "SwiGLUFFN.from_torch"
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.gate_proj = linear_of(gate_proj, what)
        made.up_proj = linear_of(up_proj, what)
        made.down_proj = linear_of(down_proj, what)
        made.dropout = dropout_of(dropout, gate_proj, what)
        made.training = gate_proj.training
        return made
