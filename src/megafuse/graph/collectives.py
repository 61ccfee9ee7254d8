"""Collectives of torch.distributed among a graph's operations.

    sum = _c10d_functional.all_reduce(x, …)     begins, and returns at once
    all = _c10d_functional.wait_tensor(sum)     waits: the same memory, now complete

What a program must keep so that all ranks meet, and work is done while data travels:
- Every collective is begun, read or not, and no two are made one: another rank counts on each.
- They begin in the graph's order (clusters.py), and none waits for work that comes after it: a
  kernel that one of them reads takes in nothing more.
- A wait comes just before the first step that reads what it waited for (partition.py). torch's
  tracer writes each wait right behind its collective, where nothing would overlap.
"""

from __future__ import annotations

from typing import Any

import torch

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
BEGINS_ONE = "a collective begins with what is there"


def is_collective(target: Any) -> bool:
    """Whether the operation begins a collective or waits for one."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES


def waits(target: Any) -> bool:
    return is_collective(target) and target.name().endswith("::wait_tensor")


def begins(target: Any) -> bool:
    return is_collective(target) and not waits(target)
