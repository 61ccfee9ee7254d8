"""SwiGLUFFN: (silu(x·Wgᵀ)·(x·Wuᵀ))·Wdᵀ, the feed-forward half of a Llama block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.nn.dropout import dropout_of, drops, with_residual
from megafuse.nn.linear import linear_of, readable, weight_of
from megafuse.nn.linear_gelu import linear_act
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
        return gated_feed_forward(
            x, self.gate_proj, self.up_proj, "silu", None, self.down_proj, self.dropout, residual
        )

    @classmethod
    def from_torch(
        cls,
        gate_proj: nn.Module,
        up_proj: nn.Module,
        down_proj: nn.Module,
        dropout: nn.Module | float = 0.0,
    ) -> SwiGLUFFN:
        """From the three linear layers, which it holds; torch has no module for the whole."""
        what = "SwiGLUFFN.from_torch"
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.gate_proj = linear_of(gate_proj, what)
        made.up_proj = linear_of(up_proj, what)
        made.down_proj = linear_of(down_proj, what)
        made.dropout = dropout_of(dropout, gate_proj, what)
        made.training = gate_proj.training
        return made


def gated_feed_forward(
    x: Tensor,
    gate: nn.Module,
    up: nn.Module,
    act: str,
    hidden_dropout: nn.Module | None,
    down: nn.Module,
    dropout: nn.Module | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + dropout(down(hidden_dropout(act(gate(x))·up(x)))); in one op with silu.

    With gelu or relu the activation is in the gate's epilogue, and the product torch's.
    """
    if (
        act == "silu"
        and readable(gate)
        and readable(up)
        and readable(down)
        and (dropout is None or plain(dropout, nn.Dropout))
        and (hidden_dropout is None or not drops(hidden_dropout))
    ):
        return swiglu_ffn(
            x,
            weight_of(gate),
            weight_of(up),
            weight_of(down),
            gate.bias,
            up.bias,
            down.bias,
            residual,
            0.0 if dropout is None else dropout.p,
            dropout is not None and dropout.training,
        )
    hidden = _gated(x, gate, up, act)
    out: Tensor = down(hidden if hidden_dropout is None else hidden_dropout(hidden))
    return with_residual(out, residual, dropout)


def _gated(x: Tensor, gate: nn.Module, up: nn.Module, act: str) -> Tensor:
    if act != "silu":
        return linear_act(x, gate, act) * up(x)  # type: ignore[no-any-return]
    opened, values = gate(x), up(x)
    if opened.dtype == values.dtype and opened.shape == values.shape:
        return swiglu(opened, values)
    return F.silu(opened) * values  # type: ignore[no-any-return]
