"""linear_relu: relu(x·weightᵀ + bias), the activation in the GEMM's epilogue."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Program, Sharding, Signature, op


def _flops(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
    product, out = 2 * x.numel() * len(weight), x.numel() // max(x.shape[-1], 1) * len(weight)
    return product + 2 * out, 2 * product + 2 * out


@op(
    kernel=Program(),
    signature=Signature(shapes={"x": "...K", "weight": "NK", "bias": "N"}, autocast="lower"),
    autograd=Autograd(saves=("x", "weight", "bias", "out"), grads={"x": 0, "weight": 1, "bias": 2}),
    sharding=Sharding(cuts={"N": ()}, results={"out": "...N"}),
    flops=_flops,
    # Backward: the activation's gradient (with a bias its sum, in two steps), then two GEMMs.
    launches=lambda x, weight, bias: (1, 3 if bias is None else 4),
    sample=lambda draw: (
        draw.full(),
        draw.matrix(draw.width(2 * draw.shape[-1]), draw.shape[-1]),
        draw.tensor(draw.width(2 * draw.shape[-1])),
    ),
)
def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """relu(x·weightᵀ + bias)

    x is [..., K], weight [N, K] as in torch.nn.Linear, bias [N].
    """
    return F.relu(F.linear(x, weight, bias))
