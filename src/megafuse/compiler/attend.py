"""scaled_dot_product_attention in a captured graph becomes our op, which picks a kernel per call.

torch's own picks one while it traces, from tensors without memory. So it takes for ever what it
finds then: BERT and ViT on an H200 get two float32 products and a softmax in place of a tiled
kernel (BERT-base, 32 × 128 tokens in bfloat16: 2.8 ms on the device, and 1.7 with our op;
torch.compile does as torch).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.compiler.shared_keys import share_keys
from megafuse.ops.attention import attention

DEVICES = ("cuda",)  # where that is so
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def with_attention(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, and those inside of it, with `attend` in place of torch's function."""
    for graph_module in module.modules():
        if not isinstance(graph_module, torch.fx.GraphModule):
            continue
        calls = graph_module.graph.find_nodes(
            op="call_function", target=F.scaled_dot_product_attention
        )
        for node in calls:
            share_keys(node)
            node.target = attend
        if calls:
            graph_module.graph.eliminate_dead_code()
            graph_module.recompile()
    return module


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    repeated: bool = False,
) -> Tensor:
    """By our op, where that takes the call; else as torch does it. Is called while torch traces.

    `repeated`: what torch was given had each key and value once for every query head.
    """
    tensors = (query, key, value)
    taken = (
        query.device.type in DEVICES
        and dropout_p == 0.0
        and query.dtype in _DTYPES
        and all(t.dim() == 4 and t.dtype == query.dtype for t in tensors)
        and all(t.shape[0] == query.shape[0] and t.shape[3] == query.shape[3] for t in tensors)
        and key.shape == value.shape
        and (query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0))
        and _takes_mask(attn_mask, query, key)
    )
    if taken:
        made: Tensor = attention(query, key, value, is_causal, scale=scale, mask=attn_mask)
        return made
    if repeated:
        times = query.shape[1] // key.shape[1]
        key, value = (
            t.unsqueeze(2).expand(-1, -1, times, -1, -1).flatten(1, 2) for t in (key, value)
        )
        enable_gqa = False
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _takes_mask(mask: Any, query: Tensor, key: Tensor) -> bool:
    """Not one that wants a gradient, or does not broadcast to queries by keys as ours wants it."""
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() > 4:
        return False
    whole = (*query.shape[:3], key.shape[2])
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    return all(bool(m == 1) or bool(m == w) for m, w in zip(padded, whole, strict=True))
