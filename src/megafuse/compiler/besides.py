"""What a function reads besides its arguments: globals, closures, attributes of `self`.

Numbers, strings, flags and dtypes of that kind are constants in a capture. Each is noted with the
value that it had, and the host compares them with each call: where one has changed, the function
is captured anew. (A tensor of that kind is an error: errors.py.) What the code does not name is not
seen: items of a list or a dict, attributes of a class, getattr(self, name).
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

Besides = tuple[Any, str | None, Any]  # a dict, a key and the value; or a cell, None and the value

_SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_MOST = 256  # what a call can compare in a microsecond or two
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_NOT_THE_USERS = ("torch", "megafuse", "builtins", "math", "numpy", "functools", "typing")


def besides(function: Callable[..., Any], fixed: Iterable[Any]) -> list[Besides]:
    """All that is found in what the code names. `fixed` are arguments that are no tensors."""
    walk = _Walk()
    walk.see(function)
    for value in fixed:
        walk.see(value)
    walk.finish()
    return walk.found[:_MOST]


def changing(calls: Sequence[Sequence[Besides]]) -> list[str]:
    """The names of what had another value in most of these calls."""
    values: dict[tuple[int, str | None], set[str]] = {}
    for found in calls:
        for owner, key, value in found:
            values.setdefault((id(owner), key), set()).add(repr(value))
    most = [key for (_, key), seen in values.items() if 2 * len(seen) > len(calls)]
    return [key or "a variable of the function around it" for key in most]


class _Walk:
    def __init__(self) -> None:
        self.found: list[Besides] = []
        self.names: set[str] = set()  # that the code seen so far mentions
        self.holders: list[Any] = []  # objects with attributes
        self._seen: set[int] = set()
        self._noted: set[tuple[int, str | None]] = set()

    def finish(self) -> None:
        """Attributes by the names in the code; what they lead to may name others."""
        before = -1
        while before != len(self.names) + len(self.holders) + len(self.found):
            before = len(self.names) + len(self.holders) + len(self.found)
            for holder in list(self.holders):
                self._attributes(holder)

    def see(self, value: Any) -> None:
        if id(value) in self._seen or isinstance(value, (torch.Tensor, type, *_SIMPLE)):
            return
        self._seen.add(id(value))
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self.see(part)
        elif isinstance(value, types.MethodType):
            self.see(value.__func__)
            self.see(value.__self__)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(getattr(value, "__dict__", None), dict) and not _is_known(value):
            self.holders.append(value)

    def _function(self, function: types.FunctionType) -> None:
        if _is_known(function):
            return
        for code in _codes(function.__code__):
            self.names.update(code.co_names)
            for name in _globals_of(code):
                if name in function.__globals__:
                    self._note(function.__globals__, name, function.__globals__[name])
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty until it is assigned
                self._note(cell, None, cell.cell_contents)

    def _attributes(self, holder: Any) -> None:
        attributes = holder.__dict__
        for name in sorted(self.names & attributes.keys()):
            self._note(attributes, name, attributes[name])
        modules = attributes.get("_modules")
        if isinstance(holder, torch.nn.Module) and isinstance(modules, dict):
            for name in sorted(self.names & modules.keys()):
                self.see(modules[name])
        for name in sorted(self.names):
            for base in type(holder).__mro__:
                self.see(base.__dict__.get(name))  # a method, perhaps

    def _note(self, owner: Any, key: str | None, value: Any) -> None:
        if not _is_simple(value):
            self.see(value)
        elif (id(owner), key) not in self._noted:
            self._noted.add((id(owner), key))
            self.found.append((owner, key, value))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """With the functions that are defined inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _globals_of(code: types.CodeType) -> list[str]:
    """Not `shape` of x.shape, a variable of which name many a notebook has."""
    loads = (each for each in dis.get_instructions(code) if each.opname in _LOADS)
    return list(dict.fromkeys(each.argval for each in loads))


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_simple, value))
    return isinstance(value, _SIMPLE)


def _is_known(value: Any) -> bool:
    """Whether it is torch's or another library's, which does not change between calls."""
    if isinstance(value, torch.nn.Module):
        return False
    if isinstance(value, types.ModuleType):
        module = value.__name__
    else:  # instances of classes that are written in C, as SimpleNamespace, have no __module__
        module = getattr(value, "__module__", type(value).__module__)
    return str(module).partition(".")[0] in _NOT_THE_USERS
