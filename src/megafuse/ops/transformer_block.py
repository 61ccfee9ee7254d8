"""transformer_block: a whole pre-norm block, seven launches forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.ops.attention import pairs
from megafuse.ops.ffn import ACTS
from megafuse.registry import OPS, Autograd, Program, Sharding, Signature, op
from megafuse.registry.sample import Draw

_PARAMETERS = (
    "ln1_weight", "ln1_bias", "qkv_weight", "qkv_bias", "proj_weight", "proj_bias",
    "ln2_weight", "ln2_bias", "w1", "b1", "w2", "b2",
)  # fmt: skip
_NORMS = ("ln1_weight", "ln1_bias", "ln2_weight", "ln2_bias")
_KEPT = (
    "normed1", "qkv", "attended", "lse", "middle", "normed2", "pre", "hidden",
    "mean1", "scale1", "mean2", "scale2",
)  # fmt: skip


def _flops(x: Tensor, *args: Any) -> tuple[int, int]:
    given = dict(zip((*_PARAMETERS, "heads", "causal"), args, strict=False))
    rows, features = x.shape[0] * x.shape[1], x.shape[-1]
    weights = ("qkv_weight", "proj_weight", "w1", "w2")
    products = 2 * rows * sum(given[name].numel() for name in weights)
    scores = x.shape[0] * pairs(x.shape[1], x.shape[1], given["causal"])
    attended = 4 * scores * features
    beside = rows * (16 * features + 13 * len(given["w1"])) + 15 * scores * given["heads"]
    return products + attended + beside, 2 * products + attended * 5 // 2 + 2 * beside


def _kept(x: Tensor, *args: Any) -> list[Tensor]:
    names = (*_PARAMETERS, "heads", "causal", "act", "mask", "eps", "recompute")
    given = dict(zip(names, args, strict=True))
    rows, features = x.shape[0] * x.shape[1], x.shape[-1]
    dtype = given["qkv_weight"].dtype
    every, most = given["recompute"] == 0, given["recompute"] < 2
    relu, width = given["act"] == "relu", len(given["w1"])
    exact = torch.promote_types(dtype, torch.float32)

    def matrix(columns: int, there: bool, dtype: torch.dtype = dtype) -> Tensor:
        return x.new_empty((rows, columns) if there else (0,), dtype=dtype)

    return [
        matrix(features, every),
        matrix(3 * features, most),
        matrix(features, True),
        x.new_empty((x.shape[0], given["heads"], x.shape[1]), dtype=exact),
        matrix(features, most, x.dtype if most else dtype),
        matrix(features, every),
        matrix(width, most and not relu),
        matrix(width, every or (relu and most)),
        *(
            x.new_empty((rows, 1), dtype=torch.promote_types(x.dtype, torch.float32))
            for _ in range(4)
        ),
    ]


def _check(x: Tensor, *args: Any) -> str | None:
    heads = args[len(_PARAMETERS)]
    if x.shape[-1] % heads:
        return f"the features of 'x' must be a multiple of 'heads', got {x.shape[-1]} and {heads}"
    return None


def _sample(draw: Draw) -> tuple[Any, ...]:
    batch, tokens, features = draw.shape
    width = draw.width(4 * features)
    heads = next(h for h in (12, 4, 3, 2, 1) if features % h == 0)
    mask = draw.tensor(batch, 1, tokens, tokens) if draw.gives("mask") else None
    return (
        draw.full(),
        draw.row(), draw.row(), draw.matrix(3 * features, features), draw.tensor(3 * features),
        draw.matrix(features, features), draw.row(),
        draw.row(), draw.row(), draw.matrix(width, features), draw.tensor(width),
        draw.matrix(features, width), draw.row(),
        heads, False, "gelu", mask, 1e-5, 0,
    )  # fmt: skip


@op(
    kernel=Program(),
    signature=Signature(
        choices={"act": ACTS},
        shapes={
            "x": "BSE", "ln1_weight": "E", "ln1_bias": "E", "qkv_weight": "3EE", "qkv_bias": "3E",
            "proj_weight": "EE", "proj_bias": "E", "ln2_weight": "E", "ln2_bias": "E",
            "w1": "NE", "b1": "N", "w2": "EN", "b2": "E",
        },
        ranges={"heads": (1, 1024), "eps": (0.0, float("inf")), "recompute": (0, 2)},
        any_dtype=("mask",),
        own_dtype=("x", *_NORMS, "mask"),
        check=_check,
        autocast="lower",
    ),
    autograd=Autograd(
        saves=("x", *_PARAMETERS, "mask", *_KEPT),
        grads={name: i for i, name in enumerate(("x", *_PARAMETERS))},
        keeps=_KEPT,
        kept=_kept,
    ),
    sharding=Sharding(
        cuts={"B": ()},
        results={
            "out": "BSE", "normed1": "(BS)E", "qkv": "(BS)1", "attended": "(BS)E", "lse": "B1S",
            "middle": "(BS)E", "normed2": "(BS)E", "pre": "(BS)N", "hidden": "(BS)N",
            **dict.fromkeys(("mean1", "scale1", "mean2", "scale2"), "(BS)1"),
        },
        spread={"mask": "B1SS"},
    ),
    flops=_flops,
    launches=(7, 23),
    sample=_sample,
)  # fmt: skip
def transformer_block(
    x: Tensor,
    ln1_weight: Tensor | None,
    ln1_bias: Tensor | None,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    proj_weight: Tensor,
    proj_bias: Tensor | None,
    ln2_weight: Tensor | None,
    ln2_bias: Tensor | None,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    heads: int,
    causal: bool = False,
    act: str = "gelu",
    mask: Tensor | None = None,
    eps: float = 1e-5,
    recompute: int = 0,
) -> Tensor:
    """h + ffn(LN(h)), h = x + proj(attention(LN(x)·qkvᵀ)): a pre-norm transformer block

    x is [batch, tokens, features]; qkv_weight is [3·features, features], queries, keys and values
    one after the other as in torch.nn.MultiheadAttention.in_proj_weight; w1 is [hidden, features],
    w2 [features, hidden]; biases and the norms' parameters may be None. `act` is gelu, gelu_tanh or
    relu, `causal` and `mask` are those of attention (a mask that wants its gradient makes the whole
    call PyTorch's). x may be float32 beside narrower weights: it
    stays so, and so does the result, as under torch.autocast.

    `recompute` trades time for memory in the backward pass. 0 keeps everything between the kernels;
    1 works out the norms and the activation again; 2 keeps the attention's result only, and does
    the forward pass's other products again.
    """
    batch, tokens, features = x.shape

    def norm(t: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        weight = None if weight is None else weight.to(t.dtype)
        bias = None if bias is None else bias.to(t.dtype)
        return F.layer_norm(t, t.shape[-1:], weight, bias, eps)

    qkv = F.linear(norm(x, ln1_weight, ln1_bias).to(qkv_weight.dtype), qkv_weight, qkv_bias)
    q, k, v = qkv.view(batch, tokens, 3, heads, features // heads).permute(2, 0, 3, 1, 4)
    attended = _REFERENCE_ATTENTION(q, k, v, causal, None, mask).transpose(1, 2)
    h = x + F.linear(attended.reshape(batch, tokens, features), proj_weight, proj_bias)
    normed = norm(h, ln2_weight, ln2_bias).to(w1.dtype)
    return _REFERENCE_FFN(normed, w1, b1, w2, b2, act, h, 0.0, False)


_REFERENCE_ATTENTION: Callable[..., Tensor] = OPS["attention"].reference
_REFERENCE_FFN: Callable[..., Tensor] = OPS["ffn"].reference
