"""What was read of a model and of the code around it, and whether it is still the same.

The host compares (runtime/host/graph/unchanged.h): versions of dicts, items of lists, fields of
functions, and of tensors all but their contents. It holds no references, since Python's garbage
collector would not see them, and the model refers to us: what it points to is held here. So an
object that was replaced is freed at the model's next call, or by `deoptimize`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from megafuse.runtime import loader

_ALL = object()  # instead of keys: all items of a dict were read, and that there are no others


class Seen:
    """Is told what was read, piece by piece; after `freeze`, says whether all is as it was."""

    def __init__(self) -> None:
        self._dicts: dict[int, tuple[dict[Any, Any], Any]] = {}  # id → the dict, keys or _ALL
        self._types: dict[int, type] = {}
        self._objects: dict[int, Any] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._cells: dict[int, types.CellType] = {}
        self._lists: dict[int, list[Any]] = {}
        self._tensors: dict[int, torch.Tensor] = {}
        self._held: dict[str, Any] = {}
        self._handle: Any = None

    def item(self, of: dict[Any, Any], key: Any) -> None:
        keys = self._dicts.setdefault(id(of), (of, set()))[1]
        if keys is not _ALL:
            keys.add(key)

    def whole(self, of: dict[Any, Any]) -> None:
        self._dicts[id(of)] = of, _ALL

    def attributes(self, kind: type) -> None:
        """Of a class and of those that it inherits from."""
        for each in kind.__mro__:
            if each is not object:
                self._types[id(each)] = each

    def layout(self, of: Any) -> None:
        """Its class, and which dict has its attributes."""
        self._objects[id(of)] = of

    def function(self, of: types.FunctionType) -> None:
        self._functions[id(of)] = of

    def cell(self, of: types.CellType) -> None:
        self._cells[id(of)] = of

    def list(self, of: list[Any]) -> None:
        self._lists[id(of)] = of

    def tensor(self, of: torch.Tensor) -> None:
        self._tensors[id(of)] = of

    def freeze(self, modes: bool) -> bool:
        """As it is now, is how it should stay; `modes`: grad mode and its like, too. False: this
        Python cannot tell."""
        host = loader.load()
        if host is None:
            return False
        self._held = {
            "modes": modes,
            "dicts": [_dict(of, keys) for of, keys in self._dicts.values()],
            "types": [(each, dict(vars(each))) for each in self._types.values()],
            "objects": [(each, getattr(each, "__dict__", None)) for each in self._objects.values()],
            "functions": list(self._functions.values()),
            "cells": list(self._cells.values()),
            "lists": [(each, tuple(each)) for each in self._lists.values()],
            "tensors": list(self._tensors.values()),
            # what the host's fields of functions and cells point to
            "fields": [_fields(each) for each in self._functions.values()],
            "contents": [each.cell_contents for each in self._cells.values()],
        }
        self._handle = host.unchanged_new(self._held)
        self.holds: Callable[[], bool] = functools.partial(host.unchanged_holds, self._handle)
        return self._handle is not None


def _dict(of: dict[Any, Any], keys: Any) -> tuple[dict[Any, Any], dict[Any, Any], bool]:
    if keys is _ALL:
        return of, dict(of.items()), True
    return of, {key: of[key] for key in keys}, False


def _fields(of: types.FunctionType) -> tuple[Any, ...]:
    return of.__code__, of.__defaults__, of.__kwdefaults__, of.__closure__


def is_plain(tensor: Any) -> bool:
    """Whether its class, sizes and so on are all there is to it."""
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
