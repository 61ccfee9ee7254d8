"""The ladder: one operation, kernel by kernel, from the naive one to the one that is shipped.

    gelu_scale    naive → coalesced → 16-byte loads → fused → shipped
    bias_act      the same rungs, for a CPU on which gelu's arithmetic takes longer than its bytes
    layer_norm    naive → coalesced → 32 lanes → row kept → 16-byte loads (GPU) → shipped
    linear_relu   the mistake: naive → tiled → shipped

Each rung but the last is a CUDA source and, where its idea applies, a CPU form of it in kernels/,
compiled when first called.
The last rung is the shipped op itself.
"""

from __future__ import annotations

from megafuse.learn.ladder import bias_act, gelu_scale, layer_norm, linear_relu
from megafuse.learn.ladder.rung import Ladder, Rung

LADDERS: dict[str, Ladder] = {
    ladder.name: ladder
    for ladder in (gelu_scale.LADDER, bias_act.LADDER, layer_norm.LADDER, linear_relu.LADDER)
}

__all__ = ["LADDERS", "Ladder", "Rung"]
