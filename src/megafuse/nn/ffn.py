"""FFN: act(x·W1ᵀ + b1)·W2ᵀ + b2, the feed-forward half of a transformer block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn import activation as activations
from megafuse.nn.activation import Activation
from megafuse.nn.adopt import expect
from megafuse.nn.dropout import dropout_of, drops, with_residual
from megafuse.nn.linear import linear_of, readable, weight_of
from megafuse.nn.linear_gelu import linear_act
from megafuse.nn.plain import plain
from megafuse.ops.ffn import ffn


class FFN(nn.Module):
    """dropout(linear2(hidden_dropout(act(linear1(x))))), plus a residual where one is given.

    `linear1` and `linear2` are nn.Linear layers, named as in nn.TransformerEncoderLayer. One op
    does all of it, except for a hidden dropout in training: then the activation is in the first
    GEMM's epilogue, and the hidden dropout is torch's. A layer that is more than its weight and
    bias (adapters, hooks, quantization) is called. `activation` is "relu", "gelu" or "gelu_tanh",
    or torch's function or module for it.
    """

    linear1: nn.Module
    linear2: nn.Module
    dropout: nn.Module
    hidden_dropout: nn.Module
    activation: str

    def __init__(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float = 0.0,
        activation: Activation = "gelu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias, device, dtype)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias, device, dtype)
        self.hidden_dropout = nn.Dropout(hidden_dropout)
        self.dropout = nn.Dropout(dropout)
        self.activation = activations.named(activation, "FFN")

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return feed_forward(
            x,
            self.linear1,
            self.activation,
            self.hidden_dropout,
            self.linear2,
            self.dropout,
            residual,
        )

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}"

    @classmethod
    def from_torch(
        cls,
        linear1: nn.Module,
        activation: Activation | None = None,
        linear2: nn.Module | None = None,
        dropout: nn.Module | float = 0.0,
        hidden_dropout: nn.Module | float = 0.0,
    ) -> FFN:
        """From the two layers and the activation; or from one module that has them all.

        That is an nn.TransformerEncoderLayer, or an nn.Sequential of a linear layer, an
        activation and a linear layer, with or without an nn.Dropout after the second and the
        third. The layers themselves are held, not copies: a Conv1D of transformers as it is, and
        a layer with an adapter (LoRA) in its place with the adapter.
        """
        what = "FFN.from_torch"
        if isinstance(linear1, nn.TransformerEncoderLayer):
            layer = linear1
            activation, hidden_dropout, dropout = layer.activation, layer.dropout, layer.dropout2
            linear1, linear2 = layer.linear1, layer.linear2
        elif isinstance(linear1, nn.Sequential):
            linear1, activation, hidden_dropout, linear2, dropout = _taken_apart(linear1, what)
        if activation is None or linear2 is None:
            raise TypeError(f"{what} takes linear1, activation and linear2, or one module")
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.linear1, made.linear2 = linear_of(linear1, what), linear_of(linear2, what)
        made.hidden_dropout = dropout_of(hidden_dropout, linear1, what)
        made.dropout = dropout_of(dropout, linear1, what)
        made.activation = activations.named(activation, what)
        made.training = linear1.training
        return made

    def to_torch(self) -> nn.Sequential:
        """nn.Sequential(linear1, activation, hidden dropout, linear2, dropout): the same layers."""
        made = nn.Sequential(
            self.linear1,
            activations.MODULES[self.activation]().train(self.training),
            self.hidden_dropout,
            self.linear2,
            self.dropout,
        )
        made.training = self.training
        return made


def feed_forward(
    x: Tensor,
    linear1: nn.Module,
    act: str,
    hidden_dropout: nn.Module | None,
    linear2: nn.Module,
    dropout: nn.Module | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + dropout(linear2(hidden_dropout(act(linear1(x))))), in one op if it can be."""
    if (
        readable(linear1)
        and readable(linear2)
        and (dropout is None or plain(dropout, nn.Dropout))
        and (hidden_dropout is None or not drops(hidden_dropout))
    ):
        return ffn(
            x,
            weight_of(linear1),
            linear1.bias,
            weight_of(linear2),
            linear2.bias,
            act,
            residual,
            0.0 if dropout is None else dropout.p,
            dropout is not None and dropout.training,
        )
    hidden = linear_act(x, linear1, act)
    out: Tensor = linear2(hidden if hidden_dropout is None else hidden_dropout(hidden))
    return with_residual(out, residual, dropout)


Parts = tuple[nn.Module, nn.Module, nn.Module | float, nn.Module, nn.Module | float]


def _taken_apart(module: nn.Sequential, what: str) -> Parts:
    """linear1, activation, hidden dropout, linear2, dropout of a Sequential."""
    expect(module, what, nn.Sequential)
    parts: list[nn.Module | float] = list(module)
    for after in (2, 4):
        if len(parts) <= after or not isinstance(parts[after], nn.Dropout):
            parts.insert(after, 0.0)
    if len(parts) != 5 or not all(isinstance(parts[i], nn.Module) for i in (0, 1, 3)):
        raise TypeError(
            f"{what} takes an nn.Sequential of Linear, activation, Linear, with or without a "
            f"Dropout after the activation and at the end, and got one of "
            f"{', '.join(type(m).__name__ for m in module) or 'nothing'}"
        )
    return tuple(parts)  # type: ignore[return-value]
