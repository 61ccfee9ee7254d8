"""dropout_add: residual + dropout(x) in one pass, with no mask in memory."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Program, Sharding, Signature, op


@op(
    kernel=Program(random=True),
    signature=Signature(
        shapes={"x": "...N", "residual": "...N"}, ranges={"p": (0.0, 1.0)}, own_dtype=("residual",)
    ),
    autograd=Autograd(
        grads={"x": 0, "residual": 1},
        passthrough=("residual",),
        vjp=lambda grad, **_: (grad, grad),  # with nothing dropped
    ),
    sharding=Sharding(cuts={"N": ()}, results={"out": "...N"}),
    flops=(2, 1),
    launches=(1, 1),
    sample=lambda draw: (draw.full(), draw.full(), 0.0, True),
)
def dropout_add(x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """residual + dropout(x): x's elements are zero with probability p, the rest divided by 1 − p

    Both have the same shape. The random numbers come from a counter, seeded from torch's generator
    (torch.manual_seed), so the backward pass draws them again and nothing is stored for it. They
    are not the numbers that torch.nn.functional.dropout would draw.
    """
    return residual + F.dropout(x, p, training)
