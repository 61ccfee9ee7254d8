"""Attention: softmax(q·kᵀ / √d)·v between its projections."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.nn import masks
from megafuse.nn.adopt import adopt, expect
from megafuse.ops.attention import attention


class Attention(nn.MultiheadAttention):
    """out_proj(softmax(q·kᵀ / √d)·v), with q, k, v = in_proj(query, key, value).

    Arguments, parameters, initial values and masks are those of nn.MultiheadAttention, and so is
    the result, a pair, with two differences: the weights, which the op never has in memory, come
    only with `need_weights=True`; and `attention(x)` is self-attention, `is_causal=True` needing
    no mask.

    What runs when:
    - `megafuse.attention`, as a rule;
    - torch's scaled_dot_product_attention in training with dropout > 0, which acts on the weights;
    - torch's own forward for `need_weights=True`, `kdim` or `vdim` of their own, `add_bias_kv`,
      `add_zero_attn` and nested tensors.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        key = query if key is None else key
        value = key if value is None else value
        if need_weights or not self.fusible or query.is_nested:
            return super().forward(
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        if query.dim() == 2:  # no batch
            batch = 0 if self.batch_first else 1
            padding = None if key_padding_mask is None else key_padding_mask[None]
            q = query.unsqueeze(batch)
            k = q if key is query else key.unsqueeze(batch)
            v = k if value is key else value.unsqueeze(batch)
            return self._attend(q, k, v, padding, attn_mask, is_causal).squeeze(batch), None
        return self._attend(query, key, value, key_padding_mask, attn_mask, is_causal), None

    @property
    def fusible(self) -> bool:
        """Whether it has no more than in_proj and out_proj."""
        return self.in_proj_weight is not None and self.bias_k is None and not self.add_zero_attn

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> Tensor:
        q, k, v = (self._heads(t) for t in self._projected(query, key, value))
        causal, mask = masks.merged(attn_mask, key_padding_mask, is_causal, self.num_heads, q.dtype)
        p = self.dropout if self.training else 0.0
        if p > 0:
            if mask is not None and causal:
                causal, mask = False, masks.with_causal(mask, q.shape[2], k.shape[2])
            mixed = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
        else:
            mixed = attention(q, k, v, causal, None, mask)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return self.out_proj(mixed.permute(order).flatten(2))  # type: ignore[no-any-return]

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """q, k and v: one GEMM where they come from the same tensor."""
        weight, bias, e = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        if query is key and key is value:
            return list(F.linear(query, weight, bias).split(e, -1))
        sizes = [e, 2 * e] if key is value else [e, e, e]
        weights = weight.split(sizes)
        biases = [None] * len(sizes) if bias is None else bias.split(sizes)
        sources = (query, key, value)[: len(sizes)]
        made = [F.linear(x, w, b) for x, w, b in zip(sources, weights, biases, strict=True)]
        return [part for t in made for part in t.split(e, -1)]

    def _heads(self, t: Tensor) -> Tensor:
        """[B, S, E] or [S, B, E] as [B, H, S, D], a view."""
        apart: Tensor = t.unflatten(-1, (self.num_heads, self.head_dim))
        return apart.permute((0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3))

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, "
            f"batch_first={self.batch_first}"
        )

    @classmethod
    def from_torch(cls, module: nn.Module) -> Attention:
        """From an nn.MultiheadAttention; it shares the Parameters."""
        return adopt(cls, expect(module, "Attention.from_torch", nn.MultiheadAttention))

    def to_torch(self) -> nn.MultiheadAttention:
        """An nn.MultiheadAttention over the same Parameters."""
        return adopt(nn.MultiheadAttention, self)
