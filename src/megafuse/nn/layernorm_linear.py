"""LayerNormLinear: LN(x)·Wᵀ + b."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from megafuse.nn.adopt import expect
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.linear import linear_of, readable, weight_of
from megafuse.nn.plain import plain
from megafuse.ops.layernorm_linear import layernorm_linear


class LayerNormLinear(nn.Module):
    """linear(norm(x)): an nn.LayerNorm, then an nn.Linear, under these two names.

    `eps`, `elementwise_affine` and `norm_bias` are the norm's, `bias` is the linear layer's.
    """

    norm: nn.Module
    linear: nn.Module

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        norm_bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.norm = LayerNorm(in_features, eps, elementwise_affine, norm_bias, device, dtype)
        self.linear = nn.Linear(in_features, out_features, bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return norm_linear(x, self.norm, self.linear)

    @classmethod
    def from_torch(cls, norm: nn.Module, linear: nn.Module | None = None) -> LayerNormLinear:
        """From an nn.LayerNorm and an nn.Linear, or an nn.Sequential of the two, which it holds."""
        if isinstance(norm, nn.Sequential) and linear is None and len(norm) == 2:
            norm, linear = norm
        if linear is None:
            raise TypeError(
                "LayerNormLinear.from_torch takes a norm and a linear layer, or an nn.Sequential "
                "of the two"
            )
        expect(norm, "LayerNormLinear.from_torch", nn.LayerNorm, LayerNorm)
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.norm = norm
        made.linear = linear_of(linear, "LayerNormLinear.from_torch")
        return made.train(norm.training)

    def to_torch(self) -> nn.Sequential:
        """nn.Sequential(nn.LayerNorm, nn.Linear) over the same Parameters."""
        norm = self.norm.to_torch() if isinstance(self.norm, LayerNorm) else self.norm
        return nn.Sequential(norm, self.linear).train(self.training)


def norm_linear(x: Tensor, norm: nn.Module, linear: nn.Module) -> Tensor:
    """linear(norm(x)) in one op, if the two are no more than their parameters."""
    if (
        plain(norm, nn.LayerNorm, LayerNorm)
        and readable(linear)
        and x.shape[-1:] == norm.normalized_shape
    ):
        weight = weight_of(linear)
        return layernorm_linear(x, norm.weight, norm.bias, weight, linear.bias, norm.eps)
    return linear(norm(x))  # type: ignore[no-any-return]
