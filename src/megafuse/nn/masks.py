"""Attention masks: from what torch's modules take to what the ops take."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def merged(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    heads: int,
    dtype: torch.dtype,
) -> tuple[bool, Tensor | None]:
    """(causal, mask) for `megafuse.attention`, from what nn.MultiheadAttention takes.

    True in a bool mask there means "leave out", and "attend" in ours; a float mask is added in
    both. `is_causal` says that `attn_mask`, if there is one, is the causal mask: it is not read.
    `key_padding_mask` is [B, T], `attn_mask` [S, T] or [B·H, S, T].
    """
    masks = []
    if attn_mask is not None and not is_causal:
        masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, heads)))
    if key_padding_mask is not None:
        masks.append(key_padding_mask[:, None, None, :])
    if not masks:
        return is_causal, None
    if all(mask.dtype == torch.bool for mask in masks):
        left_out = masks[0] if len(masks) == 1 else masks[0] | masks[1]
        return is_causal, ~left_out
    added = [_additive(mask, dtype) for mask in masks]
    return is_causal, added[0] if len(added) == 1 else added[0] + added[1]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def with_causal(mask: Tensor, queries: int, keys: int) -> Tensor:
    """The causal mask in `mask`, one of ours: torch's SDPA takes only one of the two."""
    seen = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
