"""ffn: a transformer's feed-forward block, two GEMMs with everything between them fused."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from megafuse.codegen.activations import ACTIVATIONS
from megafuse.registry import Autograd, Program, Sharding, Signature, op

ACTS = ("gelu", "gelu_tanh", "relu")


def _flops(x: Tensor, w1: Tensor, b1: Any, w2: Tensor, *_: Any) -> tuple[int, int]:
    rows = x.numel() // max(x.shape[-1], 1)
    products = 2 * rows * (w1.numel() + w2.numel())
    return products + 13 * rows * len(w1), 2 * products + 21 * rows * len(w1)


def _launches(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    act: str,
    residual: Tensor | None,
    p: float,
    training: bool,
) -> tuple[int, int]:
    # The library's epilogue has no erf. Backward: four GEMMs, the activation's gradient (in a
    # GEMM's epilogue for the tanh form without a bias to sum), two steps for the sum of a bias.
    drops = int(training and p > 0)
    act_pass = 0 if act == "gelu_tanh" and b1 is None else 1
    sums = int(b1 is not None) + 2 * int(b2 is not None)
    return 2 + int(act == "gelu") + drops, 4 + act_pass + sums + drops


def _kept(x: Tensor, w1: Tensor, b1: Any, w2: Any, b2: Any, act: str, *_: Any) -> list[Tensor]:
    hidden = (*x.shape[:-1], len(w1))
    return [x.new_empty((0,) if act == "relu" else hidden), x.new_empty(hidden)]


@op(
    kernel=Program(random=True),
    signature=Signature(
        choices={"act": ACTS},
        shapes={"x": "...K", "w1": "NK", "b1": "N", "w2": "MN", "b2": "M", "residual": "...M"},
        ranges={"p": (0.0, 1.0)},
        own_dtype=("residual",),
        autocast="lower",
    ),
    autograd=Autograd(
        saves=("x", "w1", "b1", "w2", "b2", "pre", "hidden"),
        grads={"x": 0, "w1": 1, "b1": 2, "w2": 3, "b2": 4, "residual": 5},
        passthrough=("residual",),
        keeps=("pre", "hidden"),
        kept=_kept,
    ),
    sharding=Sharding(
        cuts={"N": ("b2", "residual"), "M": ()},
        results={"out": "...M", "pre": "...N", "hidden": "...N"},
    ),
    flops=_flops,
    launches=_launches,
    sample=lambda draw: (
        draw.full(),
        draw.matrix(draw.width(4 * draw.shape[-1]), draw.shape[-1]),
        draw.tensor(draw.width(4 * draw.shape[-1])),
        draw.matrix(draw.shape[-1], draw.width(4 * draw.shape[-1])),
        draw.row(),
        "gelu_tanh",
        draw.full() if draw.gives("residual") else None,
        0.0,
        True,
    ),
)
def ffn(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    act: str = "gelu",
    residual: Tensor | None = None,
    p: float = 0.0,
    training: bool = True,
) -> Tensor:
    """residual + dropout(act(x·w1ᵀ + b1)·w2ᵀ + b2, p)

    x is [..., K], w1 [N, K] and w2 [M, N] as in torch.nn.Linear, residual [..., M], whose dtype
    may be another (float32 under autocast); `act` is gelu (the erf form), gelu_tanh or relu. For
    the backward act's argument (but for relu) and its value are kept. Dropout draws as
    megafuse.dropout_add does.
    """
    out = F.linear(ACTIVATIONS[act].torch(F.linear(x, w1, b1)), w2, b2)
    out = F.dropout(out, p, training)
    return out if residual is None else residual + out
