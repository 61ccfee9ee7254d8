"""What is known of sizes while torch traces, without a guard: for choices right for any size."""

from __future__ import annotations

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree


def hint(size: int | torch.SymInt) -> int:
    """What it was when traced, or 0."""
    known = size.node.hint if isinstance(size, torch.SymInt) else size
    return int(known or 0)


def is_one(size: int | torch.SymInt) -> bool:
    """Whether it is 1 whatever the symbols are: asked without noting a guard."""
    return statically_known_true(size == 1)


def bytes_of(node: torch.fx.Node) -> int:
    """Of all tensors that a traced node gives."""
    tensors = [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    return sum(hint(t.numel()) * t.dtype.itemsize for t in tensors)
