"""attention: softmax(q·kᵀ)·v, with no matrix of queries by keys in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from megafuse.registry import Autograd, Program, Sharding, Signature, op
from megafuse.registry.sample import Draw


def _combined(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Both masks as one, which torch's attention wants."""
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    if not causal or mask is None:
        return mask
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask.dtype == torch.bool:
        return mask & seen
    return mask.masked_fill(~seen, -math.inf)


def _transformed() -> bool:
    """Whether forward mode or a function transform is on, which torch's tiled kernels have not."""
    functorch = torch._C._functorch.maybe_current_level() is not None
    return functorch or forward_ad._current_level >= 0


def _vjp(
    grad: Tensor,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    mask: Tensor | None,
    **_: Any,
) -> list[Tensor | None]:
    """The gradients in plain PyTorch, for second derivatives and for a mask's gradient."""
    wide = torch.promote_types(q.dtype, torch.float32)
    grad, q, k, v = (t.to(wide) for t in (grad, q, k, v))
    repeat, scale = q.shape[1] // max(k.shape[1], 1), q.shape[3] ** -0.5 if scale is None else scale
    keys, values = (t.repeat_interleave(repeat, dim=1) for t in (k, v))
    scores = q @ keys.transpose(-1, -2) * scale
    seen = _combined(q, k, causal, mask)
    if causal and seen is None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if seen is not None:
        hidden = seen.dtype == torch.bool
        scores = scores.masked_fill(~seen, -math.inf) if hidden else scores + seen
    blind = (scores == -math.inf).all(dim=-1, keepdim=True)
    p = scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
    dp = grad @ values.transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(dim=-1, keepdim=True))
    grouped = (*k.shape[:2], repeat, *k.shape[2:])
    return [
        ds @ keys * scale,
        (ds.transpose(-1, -2) @ q * scale).view(grouped).sum(dim=2),
        (p.transpose(-1, -2) @ grad).view(grouped).sum(dim=2),
        None if mask is None else ds,
    ]


def pairs(queries: int, keys: int, causal: bool) -> int:
    """Of a query and a key that it sees; a mask's are not known."""
    if not causal:
        return queries * keys
    crossing = min(queries, keys)
    return crossing * (crossing + 1) // 2 + (queries - crossing) * keys


def _flops(q: Tensor, k: Tensor, v: Tensor, causal: bool, *_: Any) -> tuple[int, int]:
    scores = q.shape[0] * q.shape[1] * pairs(q.shape[2], k.shape[2], causal)
    products = 4 * scores * q.shape[-1]
    return products + 15 * scores, products * 5 // 2 + 20 * scores


def _kept(q: Tensor, *_: Any) -> list[Tensor]:
    return [q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))]


def _check(q: Tensor, k: Tensor, v: Tensor, causal: Any, scale: Any, mask: Any) -> str | None:
    heads, groups = q.shape[1], k.shape[1]
    if heads % groups if groups else heads:
        return (
            f"the heads of 'q' must be a multiple of those of 'k' and 'v', got {heads} and {groups}"
        )
    whole = (*q.shape[:3], k.shape[2])
    if mask is not None:
        if not (mask.is_floating_point() or mask.dtype == torch.bool):
            return f"argument 'mask' must be floating point or bool, got {mask.dtype}"
        padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        if mask.dim() > 4 or any(m not in (1, w) for m, w in zip(padded, whole, strict=True)):
            return (
                f"argument 'mask' must broadcast to [batch, heads, queries, keys] = {list(whole)}, "
                f"got {list(mask.shape)}"
            )
    return None


def _sample(draw: Draw) -> tuple[Any, ...]:
    batch, heads, queries, dim = draw.shape
    groups = 1 if draw.everything else heads
    keys = queries + 3 if draw.everything else queries
    mask = draw.tensor(batch, 1, queries, keys) if draw.gives("mask") else None
    k, v = draw.tensor(batch, groups, keys, dim), draw.tensor(batch, groups, keys, dim)
    return draw.full(), k, v, False, 0.5 if draw.everything else None, mask


@op(
    kernel=Program(),
    signature=Signature(
        shapes={"q": "BHSD", "k": "BGTD", "v": "BGTD"},
        any_dtype=("mask",),
        own_dtype=("mask",),
        check=_check,
        laid_out_as="q",
        autocast="lower",
    ),
    autograd=Autograd(
        saves=("q", "k", "v", "mask", "out", "lse"),
        grads={"q": 0, "k": 1, "v": 2, "mask": 3},
        keeps=("lse",),
        kept=_kept,
        vjp=_vjp,
    ),
    sharding=Sharding(
        cuts={"B": (), "HG": ()},
        results={"out": "BHSD", "lse": "BHS"},
        spread={"mask": "BHST"},
    ),
    flops=_flops,
    launches=(1, 1),
    sample=_sample,
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v, tile by tile

    q is [batch, heads, queries, dim], k and v are [batch, groups, keys, dim], where heads is a
    multiple of groups; none of them need be contiguous, and the result is laid out as q is. `scale`
    is 1/√dim unless given. `mask` broadcasts to [batch, heads, queries, keys]: floats are added, a
    bool is true where a query may look. `causal` lets query i see keys 0 to i. A query that sees
    nothing gives zeros.

    For the backward the result and a logarithm per query are kept. The gradient of a mask is
    PyTorch's, scores by scores in memory.
    """
    mask = _combined(q, k, causal, mask)
    causal = causal and mask is None
    grouped = bool(q.shape[1] != k.shape[1])
    if _transformed():
        out, _ = torch._scaled_dot_product_attention_math(
            q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped
        )
        return out
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
