"""Many PyTorch operations, one kernel launch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from torch import Tensor

from megafuse import reference
from megafuse.doctor import doctor
from megafuse.ops import OPS

try:
    __version__ = metadata.version("megafuse")
except metadata.PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"

if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Tensor]: ...


# Plain attributes, not a module __getattr__: that would cost each call 0.1 µs.
globals().update({name: op.fused for name, op in OPS.items()})

__all__ = ["OPS", "doctor", "reference", *OPS]
