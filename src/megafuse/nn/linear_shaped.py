"""Weight and bias of an nn.Linear, in a module that computes more than an nn.Linear."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearShaped(nn.Module):
    """Arguments, parameters and initial values of nn.Linear; the forward is a subclass's.

    Not a subclass of nn.Linear. LoRA replaces what is one by W·x + B·A·x with W·x from the layer's
    own forward: for an nn.Linear that has a gelu in it that gave gelu(W·x) + B·A·x, without a word.
    """

    in_features: int
    out_features: int
    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        linear = nn.Linear(in_features, out_features, bias, device, dtype)
        self.in_features, self.out_features = in_features, out_features
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)

    def reset_parameters(self) -> None:
        """New initial values, drawn as nn.Linear draws them."""
        nn.Linear.reset_parameters(self)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return nn.Linear.extra_repr(self)  # type: ignore[arg-type]
