"""The activations that ops know by name: their structs in kernels/activations.h, and PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Activation(NamedTuple):
    """The C++ struct, and the function in PyTorch."""

    word: str
    torch: Callable[[Tensor], Tensor]


ACTIVATIONS = {
    "relu": Activation("mf::Relu", F.relu),
    "gelu": Activation("mf::Gelu", F.gelu),  # the erf form
    "gelu_tanh": Activation("mf::GeluTanh", functools.partial(F.gelu, approximate="tanh")),
    "silu": Activation("mf::Silu", F.silu),
    "sigmoid": Activation("mf::Sigmoid", torch.sigmoid),
    "tanh": Activation("mf::Tanh", torch.tanh),
}
AFTER_PRODUCTS = ("relu", "gelu", "gelu_tanh")  # what a linear layer's kernels have
GELU = {"tanh": "gelu_tanh", "none": "gelu"}  # by torch.nn.functional.gelu's `approximate`


def words(*names: str) -> dict[str, str]:
    """Name → C++ word, of these or of all."""
    return {name: ACTIVATIONS[name].word for name in names or ACTIVATIONS}


def functions(*names: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """Name → PyTorch's function, of these or of all."""
    return {name: ACTIVATIONS[name].torch for name in names or ACTIVATIONS}
