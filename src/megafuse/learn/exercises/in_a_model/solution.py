"""Exercise 22: your kernel in a model."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Kernel = Callable[[Tensor, float, float], Tensor]


class FusedGate(nn.Module):
    """x * sigmoid(scale * x + shift), by your kernel."""

    def __init__(self, kernel: Kernel, scale: Any, shift: Any) -> None:
        super().__init__()
        self.kernel, self.scale, self.shift = kernel, scale, shift

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.scale, self.shift)


def put_in(model: nn.Module, kernel: Kernel) -> int:
    """Replaces every Gate of the model; returns how many there were."""
    found = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Gate":
                fused = FusedGate(kernel, child.scale, child.shift)
                setattr(parent, name, fused)
                found += 1
    return found
