"""layernorm_linear: layer_norm(x)·weightᵀ + bias: one pass over the rows and a GEMM."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.ops.norms import one_a_row
from megafuse.registry import Autograd, Program, Sharding, Signature, op


def _flops(
    x: Tensor,
    ln_weight: Tensor | None,
    ln_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> tuple[int, int]:
    product = 2 * x.numel() * len(weight)
    return product + 8 * x.numel(), 2 * product + 17 * x.numel()


@op(
    kernel=Program(),
    signature=Signature(
        shapes={"x": "...K", "ln_weight": "K", "ln_bias": "K", "weight": "NK", "bias": "N"},
        ranges={"eps": (0.0, float("inf"))},
        own_dtype=("ln_weight", "ln_bias"),
        autocast="lower",
    ),
    autograd=Autograd(
        saves=("x", "ln_weight", "ln_bias", "weight", "bias", "normed", "mean", "scale"),
        grads={"x": 0, "ln_weight": 1, "ln_bias": 2, "weight": 3, "bias": 4},
        keeps=("normed", "mean", "scale"),
        kept=lambda x, *_: [x.new_empty(x.shape), *one_a_row(2, x)],
    ),
    sharding=Sharding(
        cuts={"N": ()},
        results={"out": "...N", "normed": "...K", "mean": "...1", "scale": "...1"},
    ),
    flops=_flops,
    # Backward: two GEMMs, the norm's gradient with its sums in two steps, the bias's sum in two.
    launches=lambda x, ln_weight, ln_bias, weight, bias, eps: (
        2,
        2 + 1 + (ln_weight is not None or ln_bias is not None) + 2 * (bias is not None),
    ),
    sample=lambda draw: (
        draw.full(),
        draw.row(),
        draw.row(),
        draw.matrix(draw.width(3 * draw.shape[-1]), draw.shape[-1]),
        draw.tensor(draw.width(3 * draw.shape[-1])),
        1e-5,
    ),
)
def layernorm_linear(
    x: Tensor,
    ln_weight: Tensor | None,
    ln_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """layer_norm(x)·weightᵀ + bias

    x is [..., K], normed over its last dimension; ln_weight and ln_bias are [K] (they may be
    float32 beside a narrower x) or None, weight is [N, K] as in torch.nn.Linear, bias [N]. For the
    backward the normed x is kept, and mean and scale of each row.
    """
    ln_weight = None if ln_weight is None else ln_weight.to(x.dtype)
    ln_bias = None if ln_bias is None else ln_bias.to(x.dtype)
    return F.linear(F.layer_norm(x, x.shape[-1:], ln_weight, ln_bias, eps), weight, bias)
