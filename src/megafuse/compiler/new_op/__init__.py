"""An op of the registry from a PyTorch function: the files that `megafuse new` writes.

read.py (the function: its arguments, its text, what it imports) → functors.py (forward and backward
as functors, through fuse's own tracer) → files.py (header, Python file, test).
"""

from __future__ import annotations

from megafuse.compiler.new_op.files import files
from megafuse.compiler.new_op.read import Refused

__all__ = ["Refused", "files"]
