"""The activations that the ops know, by the name they have there: relu, gelu, gelu_tanh."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.codegen.activations import AFTER_PRODUCTS, GELU, functions
from megafuse.nn.plain import hooked, plain

Activation = str | nn.Module | Callable[[Tensor], Tensor]

FUNCTIONS = functions(*AFTER_PRODUCTS)
MODULES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": functools.partial(nn.GELU, approximate="tanh"),
}
# Of a gated block, act(gate(x))·up(x): that has a fused form with silu too.
GATED = functions(*AFTER_PRODUCTS, "silu")
APPROXIMATE = {name: approximate for approximate, name in GELU.items()}


def known(activation: Activation) -> str | None:
    """Its name among the ops' activations; None if it is not one of them."""
    if isinstance(activation, str):
        return activation if activation in FUNCTIONS else None
    if isinstance(activation, nn.Module):
        if plain(activation, nn.ReLU):
            return "relu"
        return GELU[activation.approximate] if plain(activation, nn.GELU) else None
    if activation in (F.relu, torch.relu):
        return "relu"
    if activation is F.gelu:
        return "gelu"
    if isinstance(activation, functools.partial) and activation.func is F.gelu:
        rest = dict(activation.keywords)
        approximate = rest.pop("approximate", "none")
        return None if rest or activation.args else GELU.get(approximate)
    return None


def computed(activation: object) -> str | None:
    """Which of `GATED` a module or function computes, by its values; None if none of them.

    The libraries have classes of their own for these formulas. A copy of the module is called on
    numbers in float64, where the erf and the tanh form of gelu differ by up to 5e-4, and up to
    ±1000, where clipped forms differ. One with parameters, buffers or hooks is none of them.
    """
    if not isinstance(activation, nn.Module):
        return "silu" if activation is F.silu else known(activation)  # type: ignore[arg-type]
    if any(hooked(module) or "forward" in vars(module) for module in activation.modules()):
        return None
    if (
        next(activation.parameters(), None) is not None
        or next(activation.buffers(), None) is not None
    ):
        return None
    near = torch.linspace(-8, 8, 161, dtype=torch.float64, device="cpu")
    x = torch.cat([near, near * 125])
    twin = copy.deepcopy(activation)
    try:
        results = [twin.train(mode)(x.clone()) for mode in (True, False)]
    except Exception:  # whatever another library's module may say to a vector of float64
        return None
    for name, function in GATED.items():
        if all(_same(result, function(x)) for result in results):
            return name
    return None


def _same(result: object, expected: Tensor) -> bool:
    return isinstance(result, Tensor) and torch.allclose(
        result.to(expected.dtype), expected, rtol=1e-6, atol=1e-7
    )


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
