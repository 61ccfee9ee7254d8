"""gelu_linear: gelu(x)·weightᵀ + bias: one pass and a GEMM."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Program, Sharding, Signature, op


def _flops(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[int, int]:
    product = 2 * x.numel() * len(weight)
    return product + 13 * x.numel(), 2 * product + 21 * x.numel()


def _launches(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[int, int]:
    # Backward: two GEMMs, gelu's gradient (for the tanh form in a GEMM's epilogue), the bias's sum.
    return 2, (2 if approximate == "tanh" else 3) + (0 if bias is None else 2)


@op(
    kernel=Program(),
    signature=Signature(
        choices={"approximate": ("none", "tanh")},
        shapes={"x": "...K", "weight": "NK", "bias": "N"},
        autocast="lower",
    ),
    autograd=Autograd(
        saves=("x", "weight", "bias", "activated"),
        grads={"x": 0, "weight": 1, "bias": 2},
        keeps=("activated",),
        kept=lambda x, weight, bias, approximate: [x.new_empty(x.shape)],
    ),
    sharding=Sharding(cuts={"N": (), "K": ("bias",)}, results={"out": "...N", "activated": "...K"}),
    flops=_flops,
    launches=_launches,
    sample=lambda draw: (
        draw.full(),
        draw.matrix(draw.width(max(draw.shape[-1] // 4, 1)), draw.shape[-1]),
        draw.tensor(draw.width(max(draw.shape[-1] // 4, 1))),
        "tanh",
    ),
)
def gelu_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none"
) -> Tensor:
    """gelu(x)·weightᵀ + bias

    x is [..., K], weight [N, K] as in torch.nn.Linear, bias [N]; `approximate` is "none" for the
    erf form or "tanh", as in torch.nn.functional.gelu. For the backward gelu(x) is kept.
    """
    return F.linear(F.gelu(x, approximate=approximate), weight, bias)
