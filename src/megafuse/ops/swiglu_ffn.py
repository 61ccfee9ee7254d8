"""swiglu_ffn: the gated feed-forward block of Llama and its kin: three GEMMs and one pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Program, Sharding, Signature, op


def _flops(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *_: Any) -> tuple[int, int]:
    rows = x.numel() // max(x.shape[-1], 1)
    products = 2 * rows * (w_gate.numel() + w_up.numel() + w_down.numel())
    return products + 11 * rows * len(w_gate), 2 * products + 16 * rows * len(w_gate)


def _launches(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    b_gate: Tensor | None,
    b_up: Tensor | None,
    b_down: Tensor | None,
    residual: Tensor | None,
    p: float,
    training: bool,
) -> tuple[int, int]:
    # Backward: six GEMMs, the gradients of gate and up with their sums, those of the last bias.
    drops = int(training and p > 0)
    sums = int(b_gate is not None or b_up is not None) + 2 * int(b_down is not None)
    return 4 + drops, 7 + sums + drops


def _kept(x: Tensor, w_gate: Tensor, *_: Any) -> list[Tensor]:
    return [x.new_empty((*x.shape[:-1], len(w_gate))) for _ in range(3)]


_ARGUMENTS = ("x", "w_gate", "w_up", "w_down", "b_gate", "b_up", "b_down")


@op(
    kernel=Program(random=True),
    signature=Signature(
        shapes={
            "x": "...K",
            "w_gate": "NK",
            "w_up": "NK",
            "w_down": "MN",
            "b_gate": "N",
            "b_up": "N",
            "b_down": "M",
            "residual": "...M",
        },
        ranges={"p": (0.0, 1.0)},
        own_dtype=("residual",),
        autocast="lower",
    ),
    autograd=Autograd(
        saves=(*_ARGUMENTS, "gate", "up", "hidden"),
        grads={name: i for i, name in enumerate((*_ARGUMENTS, "residual"))},
        passthrough=("residual",),
        keeps=("gate", "up", "hidden"),
        kept=_kept,
    ),
    sharding=Sharding(
        cuts={"N": ("b_down", "residual"), "M": ()},
        results={"out": "...M", "gate": "...N", "up": "...N", "hidden": "...N"},
    ),
    flops=_flops,
    launches=_launches,
    sample=lambda draw: (
        draw.full(),
        draw.matrix(draw.width(3 * draw.shape[-1]), draw.shape[-1]),
        draw.matrix(draw.width(3 * draw.shape[-1]), draw.shape[-1]),
        draw.matrix(draw.shape[-1], draw.width(3 * draw.shape[-1])),
        draw.tensor(draw.width(3 * draw.shape[-1])) if draw.gives("b_gate") else None,
        draw.tensor(draw.width(3 * draw.shape[-1])) if draw.gives("b_up") else None,
        draw.row() if draw.gives("b_down") else None,
        draw.full() if draw.gives("residual") else None,
        0.0,
        True,
    ),
)
def swiglu_ffn(
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    b_gate: Tensor | None = None,
    b_up: Tensor | None = None,
    b_down: Tensor | None = None,
    residual: Tensor | None = None,
    p: float = 0.0,
    training: bool = True,
) -> Tensor:
    """residual + dropout((silu(x·w_gateᵀ + b_gate)·(x·w_upᵀ + b_up))·w_downᵀ + b_down, p)

    x is [..., K], w_gate and w_up [N, K] and w_down [M, N] as in torch.nn.Linear, residual
    [..., M], whose dtype may be another (float32 under autocast). For the backward both layers'
    results and their product are kept. Dropout draws as megafuse.dropout_add does.
    """
    hidden = F.silu(F.linear(x, w_gate, b_gate)) * F.linear(x, w_up, b_up)
    out = F.dropout(F.linear(hidden, w_down, b_down), p, training)
    return out if residual is None else residual + out
