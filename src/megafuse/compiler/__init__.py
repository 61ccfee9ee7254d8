"""What users call: `fuse` makes one kernel, or a few, of a function of PyTorch operations;
`optimize` makes programs of a model's graphs."""

from __future__ import annotations

from megafuse.compiler.fused import Fused, fuse
from megafuse.compiler.optimize import deoptimize, optimize

__all__ = ["Fused", "deoptimize", "fuse", "optimize"]
