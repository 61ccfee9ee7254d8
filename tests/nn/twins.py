"""What people write with torch.nn where megafuse.nn has one module: the same parameter names."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class LinearAct(nn.Linear):
    """act(linear(x))"""

    def __init__(self, *args: Any, act: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return ACTIVATIONS[self.act](super().forward(x))


class ActLinear(LinearAct):
    """linear(act(x))"""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, ACTIVATIONS[self.act](x))


class NormLinear(nn.Module):
    """linear(norm(x))"""

    def __init__(self, width: int, out: int, bias: bool = True, **options: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, **options)
        self.linear = nn.Linear(width, out, bias, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


class ResidualNorm(nn.LayerNorm):
    """s = residual + dropout(x); LN(s), s"""

    def __init__(self, *args: Any, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        s = residual + self.dropout(x)
        return super().forward(s), s


class ResidualRMS(nn.RMSNorm):
    """s = residual + dropout(x); RMSNorm(s), s"""

    def __init__(self, *args: Any, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        s = residual + self.dropout(x)
        return super().forward(s), s


class FeedForward(nn.Module):
    """residual + dropout(linear2(hidden_dropout(act(linear1(x)))))"""

    def __init__(
        self,
        width: int,
        hidden: int,
        act: str = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width, hidden, bias, **options)
        self.linear2 = nn.Linear(hidden, width, bias, **options)
        self.hidden_dropout = nn.Dropout(hidden_dropout)
        self.dropout = nn.Dropout(dropout)
        self.act = act

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        hidden = self.hidden_dropout(ACTIVATIONS[self.act](self.linear1(x)))
        out = self.dropout(self.linear2(hidden))
        return out if residual is None else residual + out


class LlamaMLP(nn.Module):
    """residual + down_proj(silu(gate_proj(x))·up_proj(x))"""

    def __init__(self, width: int, hidden: int, bias: bool = False, **options: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias, **options)
        self.up_proj = nn.Linear(width, hidden, bias, **options)
        self.down_proj = nn.Linear(hidden, width, bias, **options)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out if residual is None else residual + out


class SelfAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention without its weights, called with one tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x, x, need_weights=False)[0]
