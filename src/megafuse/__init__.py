"""Many PyTorch operations, one kernel launch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from torch import Tensor

from megafuse import nn, optim, reference
from megafuse.compiler import Fused, deoptimize, fuse, optimize
from megafuse.doctor import doctor
from megafuse.ops import BROKEN, OPS
from megafuse.runtime.fp32_matmul import get_fp32_matmul, set_fp32_matmul

try:
    __version__ = metadata.version("megafuse")
except metadata.PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+checkout"


def bench(function: Any, *args: Any, **options: Any) -> Result:
    """Times a function, or an op, against others: see `megafuse.bench.api.bench`.

    Importing `megafuse.bench` puts the package, which can be called too, in this function's place.
    """
    from megafuse.bench.api import bench

    return bench(function, *args, **options)


def diagnose(function: Any, *args: Any, **options: Any) -> Diagnosis:
    """Why a function or a module is slow, and what would help: `megafuse.diagnose.api.diagnose`.

    Importing `megafuse.diagnose` puts the package, which can be called too, in its place.
    """
    from megafuse.diagnose.api import diagnose

    return diagnose(function, *args, **options)


def explain(model: Any, *args: Any, **kwargs: Any) -> ModelExplanation:
    """What became of a model's graphs: see `megafuse.compiler.explain_model.explain`."""
    from megafuse.compiler.explain_model import explain  # brings sympy, which takes a second

    return explain(model, *args, **kwargs)


if TYPE_CHECKING:
    from megafuse import decode
    from megafuse.bench.result import Result
    from megafuse.compiler.explain_model import ModelExplanation
    from megafuse.diagnose.diagnosis import Diagnosis


def __getattr__(name: str) -> Callable[..., Tensor]:
    """Only for what is not there: megafuse.decode is imported when it is first asked for, and where
    an op's declaration failed this says why the op is not there."""
    if name == "decode":
        return import_module("megafuse.decode")  # type: ignore[return-value]  # imported above
    if name in BROKEN:
        raise AttributeError(f"megafuse.{name} is not there: {BROKEN[name]}") from BROKEN[name]
    raise AttributeError(f"module 'megafuse' has no attribute {name!r}")


# Plain attributes, not a module __getattr__: that would cost each call 0.1 µs.
globals().update({name: op.fused for name, op in OPS.items()})

__all__ = [
    "OPS",
    "Fused",
    "bench",
    "decode",
    "deoptimize",
    "diagnose",
    "doctor",
    "explain",
    "fuse",
    "get_fp32_matmul",
    "nn",
    "optim",
    "optimize",
    "reference",
    "set_fp32_matmul",
    *OPS,
]
