"""TransformerBlock: x + attention(LN(x)), then x + FFN(LN(x))."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.nn import activation as activations
from megafuse.nn import masks
from megafuse.nn.activation import Activation
from megafuse.nn.adopt import adopt, expect
from megafuse.nn.attention import Attention
from megafuse.nn.dropout import drops
from megafuse.nn.ffn import feed_forward
from megafuse.nn.layer_norm import LayerNorm
from megafuse.nn.linear import readable, weight_of
from megafuse.nn.plain import plain
from megafuse.nn.residual_layer_norm import residual_norm
from megafuse.ops.transformer_block import transformer_block


class TransformerBlock(nn.TransformerEncoderLayer):
    """Pre-norm: x + attention(norm1(x)), then x + FFN(norm2(x)). Post-norm: norm(x + …) twice.

    Arguments, parameters, initial values and masks are those of nn.TransformerEncoderLayer, its
    defaults too: post-norm, relu, dropout 0.1, batch second. `activation` may be "gelu_tanh" as
    well. `recompute` trades time for memory in the backward pass of the one op.

    What runs when:
    - pre-norm (`norm_first=True`) and no dropout to do: one op, `megafuse.transformer_block`;
    - post-norm, dropout in training, autocast, no batch dimension: `Attention`, then
      `megafuse.residual_layer_norm` and `megafuse.ffn` (with a hidden dropout to do, `linear_relu`
      or `linear_gelu`, torch's dropout and linear, and `dropout_add`);
    - an activation other than relu and gelu, or a nested tensor: torch's own forward.
    A submodule with hooks, or with another module in its place, is called as such.
    """

    recompute: int = 0

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recompute: int = 0,
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            nn.GELU("tanh") if activation == "gelu_tanh" else activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            bias,
            device,
            dtype,
        )
        self._take_parts()
        self.recompute = recompute

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        act = activations.known(self.activation)
        if act is None or src.is_nested:
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        if self._is_one_op(src):
            return self._one_op(src, src_mask, src_key_padding_mask, is_causal, act)
        ffn = (self.linear1, act, self.dropout, self.linear2)
        x = self.norm1(src) if self.norm_first else src
        x, _ = self.self_attn(
            x,
            x,
            x,
            attn_mask=src_mask,
            key_padding_mask=src_key_padding_mask,
            need_weights=False,
            is_causal=is_causal,
        )
        if self.norm_first:
            x, src = residual_norm(x, src, self.norm2, self.dropout1)
            return feed_forward(x, *ffn, self.dropout2, src)
        x, _ = residual_norm(x, src, self.norm1, self.dropout1)
        return residual_norm(feed_forward(x, *ffn), x, self.norm2, self.dropout2)[0]

    def _is_one_op(self, src: Tensor) -> bool:
        part: dict[str, Any] = self._modules  # each self.norm1 would take half a microsecond
        attn, norm1, norm2 = part["self_attn"], part["norm1"], part["norm2"]
        return (
            self.norm_first
            and src.dim() == 3
            and plain(attn, Attention)
            and attn.fusible
            and not (self.training and attn.dropout > 0)
            and not (drops(part["dropout"]) or drops(part["dropout1"]) or drops(part["dropout2"]))
            and plain(norm1, LayerNorm)
            and plain(norm2, LayerNorm)
            and norm1.eps == norm2.eps
            and readable(attn.out_proj)
            and readable(part["linear1"])
            and readable(part["linear2"])
        )

    def _one_op(
        self,
        src: Tensor,
        src_mask: Tensor | None,
        src_key_padding_mask: Tensor | None,
        is_causal: bool,
        act: str,
    ) -> Tensor:
        part: dict[str, Any] = self._modules
        attn, norm1, norm2 = part["self_attn"], part["norm1"], part["norm2"]
        proj, linear1, linear2 = attn.out_proj, part["linear1"], part["linear2"]
        causal, mask = masks.merged(
            src_mask, src_key_padding_mask, is_causal, attn.num_heads, src.dtype
        )
        out = transformer_block(
            src if attn.batch_first else src.transpose(0, 1),
            norm1.weight,
            norm1.bias,
            attn.in_proj_weight,
            attn.in_proj_bias,
            weight_of(proj),
            proj.bias,
            norm2.weight,
            norm2.bias,
            weight_of(linear1),
            linear1.bias,
            weight_of(linear2),
            linear2.bias,
            attn.num_heads,
            causal,
            act,
            mask,
            norm1.eps,
            self.recompute,
        )
        return out if attn.batch_first else out.transpose(0, 1)

    def extra_repr(self) -> str:
        act = activations.known(self.activation) or "torch's"
        return f"norm_first={self.norm_first}, activation={act!r}, recompute={self.recompute}"

    def _take_parts(self) -> None:
        """Ours for torch's, where nothing gets lost by it."""
        if plain(self.self_attn, nn.MultiheadAttention):
            self.self_attn = Attention.from_torch(self.self_attn)
        if plain(self.norm1, nn.LayerNorm):
            self.norm1 = LayerNorm.from_torch(self.norm1)
        if plain(self.norm2, nn.LayerNorm):
            self.norm2 = LayerNorm.from_torch(self.norm2)

    @classmethod
    def from_torch(cls, module: nn.Module, recompute: int = 0) -> TransformerBlock:
        """From an nn.TransformerEncoderLayer, pre-norm or post-norm; it shares the Parameters."""
        what = "TransformerBlock.from_torch"
        expect(module, what, nn.TransformerEncoderLayer)
        made = adopt(cls, module)
        activations.named(made.activation, what)
        made._take_parts()
        made.recompute = recompute
        return made

    def to_torch(self) -> nn.TransformerEncoderLayer:
        """An nn.TransformerEncoderLayer over the same Parameters."""
        made = adopt(nn.TransformerEncoderLayer, self)
        made.__dict__.pop("recompute", None)
        for name in ("self_attn", "norm1", "norm2"):
            part = getattr(made, name)
            setattr(made, name, part.to_torch() if hasattr(part, "to_torch") else part)
        return made
