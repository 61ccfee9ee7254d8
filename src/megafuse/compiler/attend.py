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
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F

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
            _share_keys(node)
            node.target = attend
        if calls:
            graph_module.graph.eliminate_dead_code()
            graph_module.recompile()
    return module


def _share_keys(call: torch.fx.Node) -> None:
    """Keys and values that were repeated for each query head of a group are taken as they were:
    kernels know groups. (Llama-1B, 4 x 512 tokens in bfloat16 on an H200: 60 us of a layer's
    forward and backward were copies, and the sums of their gradients.)"""
    if len(call.args) < 3:
        return
    query, *repeated = call.args[:3]
    shared = [_before_repeating(each) for each in repeated]
    if any(each is None for each in shared) or len({_heads(each) for each in shared}) != 1:
        return
    call.args = (query, *shared, *call.args[3:])
    call.kwargs = {**call.kwargs, "enable_gqa": True, "repeated": True}


def _before_repeating(node: Any) -> torch.fx.Node | None:
    """x, where the node is x[:, :, None].expand(…).reshape(…), or x.repeat_interleave(n, 1): head h
    is x's head h // n."""
    if not isinstance(node, torch.fx.Node):
        return None
    made, source = node, node
    if _is_call(node, "repeat_interleave"):
        if _argument(node, 2, "dim") not in (1, -3):
            return None
        source = node.args[0]  # type: ignore[assignment]
    elif _is_call(node, "reshape", "flatten"):
        spread: Any = node.args[0]
        if not _is_call(spread, "expand"):
            return None
        apart: Any = spread.args[0]
        if _like(spread) is None or _like(spread).dim() != 5 or not _is_apart(apart):
            return None
        source = apart.args[0]
    else:
        return None
    return source if _has_groups(_like(source), _like(made)) else None


def _has_groups(x: Any, y: Any) -> bool:
    """Whether y has the sizes of x, and its heads several times."""
    if x is None or y is None or x.dim() != 4 or y.dim() != 4:
        return False
    if not all(isinstance(t.shape[1], int) for t in (x, y)):
        return False
    same = all(statically_known_true(x.shape[d] == y.shape[d]) for d in (0, 2, 3))
    return same and x.shape[1] < y.shape[1] and y.shape[1] % x.shape[1] == 0


def _is_call(node: Any, *names: str) -> bool:
    """Whether it calls the method or function of one of these names."""
    if not isinstance(node, torch.fx.Node):
        return False
    target = node.target
    return (
        node.op in ("call_method", "call_function")
        and (target if isinstance(target, str) else getattr(target, "__name__", "")) in names
    )


def _is_apart(node: Any) -> bool:
    """x[:, :, None], or x.unsqueeze(2)."""
    if _is_call(node, "unsqueeze"):
        return _argument(node, 1, "dim") in (2, -3)
    if not _is_call(node, "getitem") or not isinstance(node.args[1], tuple):
        return False
    whole = slice(None, None, None)
    first, *rest = node.args[1][:3], *node.args[1][3:]
    return first == (whole, whole, None) and all(each == whole for each in rest)


def _argument(node: torch.fx.Node, place: int, name: str) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _like(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None


def _heads(node: Any) -> int:
    return int(_like(node).shape[1])


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
