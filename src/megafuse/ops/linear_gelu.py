"""linear_gelu: gelu(x·weightᵀ + bias), in the GEMM's epilogue or in one pass over its result."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Program, Sharding, Signature, op


def _flops(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[int, int]:
    product, out = 2 * x.numel() * len(weight), x.numel() // max(x.shape[-1], 1) * len(weight)
    return product + 13 * out, 2 * product + 21 * out


def _launches(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> tuple[int, int]:
    # The library's epilogue knows the tanh form alone. Backward: the activation's gradient (with a
    # bias its sum, in two steps), then two GEMMs.
    return (1 if approximate == "tanh" else 2, 3 if bias is None else 4)


@op(
    kernel=Program(),
    signature=Signature(
        choices={"approximate": ("none", "tanh")},
        shapes={"x": "...K", "weight": "NK", "bias": "N"},
        autocast="lower",
    ),
    autograd=Autograd(
        saves=("x", "weight", "bias", "pre"),
        grads={"x": 0, "weight": 1, "bias": 2},
        keeps=("pre",),
        kept=lambda x, weight, bias, approximate: [x.new_empty((*x.shape[:-1], len(weight)))],
    ),
    sharding=Sharding(cuts={"N": ()}, results={"out": "...N", "pre": "...N"}),
    flops=_flops,
    launches=_launches,
    sample=lambda draw: (
        draw.full(),
        draw.matrix(draw.width(4 * draw.shape[-1]), draw.shape[-1]),
        draw.tensor(draw.width(4 * draw.shape[-1])),
        "tanh",
    ),
)
def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, approximate: str = "none"
) -> Tensor:
    """gelu(x·weightᵀ + bias)

    x is [..., K], weight [N, K] as in torch.nn.Linear, bias [N]; `approximate` is "none" for the
    erf form or "tanh", as in torch.nn.functional.gelu. For the backward gelu's argument is kept.
    """
    return F.gelu(F.linear(x, weight, bias), approximate=approximate)
