"""Linear layers: which of them an op may read, and which have to be called."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from megafuse.nn.adopt import class_name, expect
from megafuse.nn.linear_shaped import LinearShaped
from megafuse.nn.plain import plain

# The second is MultiheadAttention's out_proj: the same layer, left alone by torch's quantization.
LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)
_ORDINARY = (nn.Parameter, torch.Tensor)


def readable(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether an op may take `weight_of(module)` and `module.bias` instead of calling it.

    That is an nn.Linear or a Conv1D of transformers with nothing on top: no hooks, no subclass, no
    adapter, and a weight that is an ordinary tensor (quantization and tensor parallelism put
    tensors of another class into an nn.Linear).
    """
    if not plain(module, *LINEAR) and not (is_conv1d(module) and plain(module, type(module))):
        return False
    weight = module._parameters.get("weight")
    return type(weight) in _ORDINARY or not is_traceable_wrapper_subclass(weight)  # type: ignore[arg-type]


def weight_of(linear: nn.Linear) -> Tensor:
    """Its weight as [out, in]: a Conv1D keeps [in, out], and this is a view of that."""
    return linear.weight if type(linear) in LINEAR else linear.weight.t()


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is GPT-2's linear layer in transformers, whose weight is [in, out]."""
    if type(module).__name__ != "Conv1D":
        return False
    library: Any = sys.modules.get("transformers.pytorch_utils")
    return library is not None and type(module) is library.Conv1D


def features(module: nn.Module) -> tuple[int, int] | None:
    """(in, out) of whatever works as a linear layer: adapters and quantized layers say it too."""
    if isinstance(module, LinearShaped):
        return None  # it has an activation inside
    if is_conv1d(module):
        return module.nx, module.nf  # type: ignore[return-value]
    found = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return found if all(isinstance(size, int) for size in found) else None  # type: ignore[return-value]


def linear_of(module: nn.Module, what: str) -> nn.Module:
    """`module`, to be held and called or read; or a TypeError, if it is no linear layer."""
    if features(module) is None:
        raise TypeError(
            f"{what} takes a torch.nn.Linear, a transformers Conv1D or a layer that stands for one "
            f"(with in_features and out_features), and got a {class_name(module)}"
        )
    return module


def readable_linear(module: nn.Module, what: str) -> nn.Linear:
    """`module`, an nn.Linear whose Parameters another module takes over; or a TypeError."""
    if is_conv1d(module):
        raise TypeError(
            f"{what} takes over a torch.nn.Linear's weight, [out, in], and got a "
            f"{class_name(module)}, which keeps [in, out]: a checkpoint would no longer fit. "
            "FFN.from_torch and convert take it as it is."
        )
    return expect(module, what, *LINEAR)
