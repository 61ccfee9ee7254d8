"""The activations that the ops know, by the name they have there: relu, gelu, gelu_tanh."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.nn.plain import plain

Activation = str | nn.Module | Callable[[Tensor], Tensor]

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": functools.partial(nn.GELU, approximate="tanh"),
}
APPROXIMATE = {"gelu": "none", "gelu_tanh": "tanh"}  # as torch.nn.functional.gelu says it
_GELU = {approximate: name for name, approximate in APPROXIMATE.items()}


def known(activation: Activation) -> str | None:
    """Its name among the ops' activations; None if it is not one of them."""
    if isinstance(activation, str):
        return activation if activation in FUNCTIONS else None
    if isinstance(activation, nn.Module):
        if plain(activation, nn.ReLU):
            return "relu"
        return _GELU[activation.approximate] if plain(activation, nn.GELU) else None
    if activation in (F.relu, torch.relu):
        return "relu"
    if activation is F.gelu:
        return "gelu"
    if isinstance(activation, functools.partial) and activation.func is F.gelu:
        rest = dict(activation.keywords)
        approximate = rest.pop("approximate", "none")
        return None if rest or activation.args else _GELU.get(approximate)
    return None


def named(activation: Activation, what: str) -> str:
    """`known`, or a ValueError that says what can be given."""
    name = known(activation)
    if name is None:
        raise ValueError(
            f"{what} has no fused form of the activation {activation!r}: it takes "
            f"{', '.join(map(repr, FUNCTIONS))}, torch.nn.functional.relu or gelu, or a "
            "torch.nn.ReLU or GELU without hooks"
        )
    return name
