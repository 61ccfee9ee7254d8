"""What users call: `fuse` makes one kernel, or a few, of a function of PyTorch operations."""

from __future__ import annotations

from megafuse.compiler.fused import Fused, fuse

__all__ = ["Fused", "fuse"]
