"""What a function costs unfused: its operations, and the bytes that each reads and writes.

Counted on tensors without memory, as PyTorch would run them: nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Traffic:
    """Operations that do work (no views, no allocations), and the bytes that they move."""

    launches: int = 0
    bytes_moved: int = 0


def counted(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Traffic, Traffic | None]:
    """Of the forward pass, and of the backward where autograd would record one."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        fake = [_fake(mode, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        given, named = pytree.tree_unflatten(fake, spec)
        with Counting() as forward:
            returned = function(*given, **named)
        return forward.traffic, backward_of(returned, fake)


def backward_of(returned: Any, leaves: Sequence[Any]) -> Traffic | None:
    """What the gradients of these leaves take; None where there are none."""
    results = [r for r in _tensors(returned) if r.requires_grad]
    wanted = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not results or not wanted:
        return None
    gradients = [torch.empty_like(result) for result in results]
    counting = Counting()
    with counting:
        torch.autograd.grad(results, wanted, gradients, allow_unused=True)
    return counting.traffic


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    made = mode.from_tensor(tensor.detach())
    return made.requires_grad_(tensor.requires_grad)


class Counting(TorchDispatchMode):
    """Adds up what runs inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic = Traffic()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _works(func) and _tensors(result):
            tensors = [*_tensors((args, kwargs)), *_tensors(result)]
            self.traffic.launches += 1
            self.traffic.bytes_moved += sum(map(nbytes, tensors))
        return result


def _works(func: torch._ops.OpOverload) -> bool:
    name = func._schema.name.removeprefix("aten::")
    views = func.is_view or any(
        a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments
    )
    free = ("empty", "new_empty", "detach", "_local_scalar", "_unsafe_view")
    return not views and not name.startswith(free)


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def nbytes(tensor: torch.Tensor) -> int:
    """Its elements in memory, each once: an expanded dimension costs nothing."""
    sizes = [n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s != 0 or n == 0]
    count = 1
    for size in sizes:
        count *= int(size)
    return count * tensor.element_size()
