"""What a function asks of memory: its operations, and the bytes they move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# They make a tensor, or another view of one, and touch no element.
_FREE = ("detach", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


@dataclass(frozen=True)
class Ledger:
    """The operations of one call, and the bytes that they read and write."""

    operations: tuple[str, ...]
    bytes_moved: int  # asked for, wherever they come from
    not_cached: int | None = None  # those that a cache cannot have held; None: not told apart

    @property
    def passes(self) -> int:
        return len(self.operations)

    @property
    def from_memory(self) -> int:
        return self.bytes_moved if self.not_cached is None else self.not_cached


def count(function: Callable[[], object]) -> Ledger:
    """Calls `function` and notes each operation that PyTorch dispatches.

    An operation is taken to read all its tensors and to write its results, once each. Another view
    of the same memory moves nothing, and is none.
    """
    with _Watch() as watch:
        function()
    return Ledger(tuple(watch.operations), watch.bytes_moved)


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []
        self.bytes_moved = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).split(".")[1]
        if not func.is_view and name not in _FREE:
            self.operations.append(name)
            found = tree_leaves((args, kwargs, out))
            self.bytes_moved += sum(t.nbytes for t in found if isinstance(t, Tensor))
        return out
