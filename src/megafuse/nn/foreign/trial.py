"""Does a module compute a formula of its parts? Tried out on a copy; the module is not called.

The copy has the module's class and settings, small random linear layers in place of its own, and a
different curve in place of each other part, so that a dropout in another place than the formula has
it gives other numbers. It takes microseconds for a layer of any size, on any device.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Draws and calls in here leave no trace: not in torch's generator, not in a graph."""
    with (
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
    ):
        torch.manual_seed(0)
        yield


class Curve(nn.Module):
    """sin(a·x + b) + c·x: no two of them are alike, and none is linear."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * (1 + 0.3 * self.number) + self.number) + x / (self.number + 2)


def small_linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=torch.float64)


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def copied(module: nn.Module, parts: Mapping[str, Any]) -> nn.Module:
    """A module of the same class and settings, without hooks, with these attributes for its own."""
    twin = module.__class__.__new__(module.__class__)
    nn.Module.__init__(twin)
    ours = vars(twin).keys()
    for name, value in vars(module).items():
        if name not in ours:
            twin.__dict__[name] = value
    for name, part in parts.items():
        twin.__dict__.pop(name, None)
        setattr(twin, name, part)
    return twin


def tied_to_the_original(module: nn.Module) -> str | None:
    """The name of an attribute through which a copy would call the original or its parts."""
    usual = vars(nn.Module()).keys()
    for name, value in vars(module).items():
        held = value.values() if isinstance(value, dict) else value
        several = isinstance(value, (dict, list, tuple))
        if name not in usual and any(
            inspect.ismethod(one) or isinstance(one, nn.Module)
            for one in (held if several else [value])
        ):
            return name
    return None


def agrees(
    twin: nn.Module, formula: Callable[..., Tensor], *inputs: Tensor, rtol: float = 1e-5
) -> bool:
    """Whether the copy computes the formula, in training as in eval."""
    expected = formula(*inputs)
    for mode in (True, False):
        twin.train(mode)
        got = type(twin).forward(twin, *(t.clone() for t in inputs))
        if not isinstance(got, Tensor) or got.shape != expected.shape:
            return False
        if not torch.allclose(got.to(expected.dtype), expected, rtol=rtol, atol=rtol):
            return False
    return True


def words(error: Exception) -> str:
    """Why a copy could not be tried, in one line."""
    said = " ".join(str(error).split())
    return f"a small copy of it could not be called: {type(error).__name__}: {said:.80}"
