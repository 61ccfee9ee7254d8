"""Tensors of a call by number: which memory, and what was in it.

Memory that is freed and given out again gets a new number: a weak reference to the storage keeps
its address from being taken for another's, and none of its bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from megafuse.diagnose.record import Touched


class Numbered:
    """Numbers storages as they appear, and values as they are written."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Any, int]] = {}
        self._writes: dict[int, int] = {}  # of a storage: how often
        self._values: dict[tuple[int, int], int] = {}
        self._made: set[int] = set()  # storages that the call has allocated itself
        self._count = 0

    def storage(self, t: Tensor) -> int:
        key = _address(t)
        found = self._storages.get(key)
        if found is not None and (found[0] is None or not found[0].expired()):
            return found[1]
        self._count += 1
        self._storages[key] = (_weak(t), self._count)
        return self._count

    def made(self, t: Tensor) -> bool:
        """Whether this result lies in memory that was not there before the call; remembers it."""
        known = _address(t) in self._storages and not self._expired(_address(t))
        number = self.storage(t)
        if not known:
            self._made.add(number)
        return not known

    def _expired(self, key: int) -> bool:
        weak = self._storages[key][0]
        return weak is not None and bool(weak.expired())

    def outside(self, t: Tensor) -> bool:
        """Whether it was there before the call."""
        return self.storage(t) not in self._made

    def write(self, t: Tensor) -> None:
        number = self.storage(t)
        self._writes[number] = self._writes.get(number, 0) + 1

    def touched(self, t: Tensor) -> Touched:
        number = self.storage(t)
        content = (number, self._writes.get(number, 0))
        value = self._values.setdefault(content, len(self._values))
        dtype = str(t.dtype).removeprefix("torch.")
        if t.is_nested:  # its rows have sizes of their own, and it has no shape
            return Touched(value, number, (), (), dtype, t.device.type, 0)
        plain = t.layout == torch.strided
        offset = int(t.storage_offset()) if plain else 0
        return Touched(
            value,
            number,
            tuple(t.shape),
            tuple(t.stride()) if plain else (),
            dtype,
            t.device.type,
            present(t),
            _aligned(t),
            number not in self._made,
            offset,
        )


def present(t: Tensor) -> int:
    """Bytes of the elements that are there: along a stride of 0 there is one."""
    if t.layout != torch.strided:
        return int(t.numel()) * t.element_size() if t.layout != torch.jagged else 0
    sizes = zip(t.shape, t.stride(), strict=True)
    return math.prod(n for n, stride in sizes if stride or n == 0) * t.element_size()


def _address(t: Tensor) -> int:
    try:
        return int(t.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, and tensors that only look like one
        return id(t)


def _weak(t: Tensor) -> Any:
    try:
        return StorageWeakRef(t.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


def _aligned(t: Tensor) -> bool:
    try:
        return t.data_ptr() % 16 == 0
    except (NotImplementedError, RuntimeError):
        return True
