"""dropout_relu: dropout(relu(x)) in one pass, with no mask in memory."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from megafuse.registry import Autograd, Pointwise, Signature, op


@op(
    kernel=Pointwise(
        "DropoutRelu<{F}, {training}>", "DropoutReluBackward<{F}, {training}>", random=True
    ),
    signature=Signature(ranges={"p": (0.0, 1.0)}),
    autograd=Autograd(saves=("x",), grads={"x": 0}),
    flops=(3, 3),
    sample=lambda draw: (draw.full(), 0.3, True),
)
def dropout_relu(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """dropout(relu(x)): zero with probability p, the rest divided by 1 − p

    The random numbers come from a counter, seeded from torch's generator (torch.manual_seed), so
    the backward pass draws them again and no mask is stored. They are not the numbers that
    torch.nn.functional.dropout would draw.
    """
    return F.dropout(F.relu(x), p, training)
