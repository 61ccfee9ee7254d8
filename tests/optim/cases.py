"""Optimizers to compare with torch's, and the steps that both take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from megafuse.runtime import cpp

NEEDS_COMPILER = pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
EVERYWHERE = pytest.mark.parametrize("device", DEVICES)
SHAPES = [(3, 5), (40_000,), (1,), (0, 4), (257, 129), ()]
# Name, arguments: every rule, and every number of it away from where it does nothing.
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {"lr": 1e-2}),
    ("AdamW", {"lr": 1e-2, "amsgrad": True, "maximize": True, "weight_decay": 0.3}),
    ("Adam", {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.7, 0.8), "eps": 1e-3}),
    ("Adam", {"lr": 1e-2, "amsgrad": True}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.2, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Lion", {"lr": 1e-2, "weight_decay": 0.2}),
    ("Lion", {"lr": 1e-2, "betas": (0.5, 0.7), "maximize": True}),
]
EACH = pytest.mark.parametrize(("name", "how"), KINDS, ids=lambda v: v if type(v) is str else "")
PLAIN = pytest.mark.parametrize(
    ("name", "how"),
    [("AdamW", {"amsgrad": True}), ("SGD", {"momentum": 0.9}), ("SGD", {}), ("Lion", {})],
    ids=lambda v: v if type(v) is str else "",
)


class PlainLion(torch.optim.Optimizer):
    """The paper's listing."""

    def __init__(self, params: Any, **how: Any) -> None:
        super().__init__(
            params, {"betas": (0.9, 0.99), "weight_decay": 0, "maximize": False, **how}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            one, two = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                update = (mean * one + grad * (1 - one)).sign()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                mean.copy_(mean * two + grad * (1 - two))


def of_torch(name: str) -> Callable[..., torch.optim.Optimizer]:
    return PlainLion if name == "Lion" else getattr(torch.optim, name)


def parameters(dtype: torch.dtype, device: str = "cpu") -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(1)
    made = [torch.randn(shape, generator=random) for shape in SHAPES]
    made.append(torch.randn(2, 3, 4, 5, generator=random).to(memory_format=torch.channels_last))
    made.append(torch.randn(6, 7, generator=random).t())
    made.append(torch.randn(70, generator=random)[3:])  # at an odd address
    return [nn.Parameter(each.to(device, dtype)) for each in made]


def stepped(
    kind: Callable[..., Any], how: dict[str, Any], dtype: torch.dtype, device: str = "cpu"
) -> list[nn.Parameter]:
    """Parameters after some steps, in two groups; now and then one has no gradient."""
    values = parameters(dtype, device)
    groups = [{"params": values[:3]}, {"params": values[3:], "lr": 3e-2}]
    optimizer = kind(groups, **how)
    random = torch.Generator().manual_seed(2)
    for step in range(6):
        for at, value in enumerate(values):
            drawn = torch.randn(value.shape, generator=random).to(device, torch.bfloat16)
            value.grad = None if (step + at) % 5 == 4 else drawn.to(dtype)
        optimizer.step()
    return values


def train(optimizer: Any, values: list[nn.Parameter], steps: int) -> None:
    for step in range(steps):
        for value in values:
            value.grad = torch.sin(value.detach() * 9 + step)
        optimizer.step()
