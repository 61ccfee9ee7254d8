"""Dataclasses from what JSON holds of them (bench.result.plain), by their annotations."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import is_dataclass
from functools import cache
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def known(kind: type[Kind], data: Any) -> Kind:
    """The dataclass from its dict. Names that it does not have are left out: a file of a later
    version stays readable."""
    if not isinstance(data, dict):
        raise TypeError(f"a {kind.__name__} is {data!r}, expected a dict")
    hints = _hints(typing.cast(Any, kind))
    given = {name: _value(hints[name], data[name]) for name in hints if name in data}
    return kind(**given)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        return known(typing.cast(type, hint), value)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        some = [h for h in inner if h is not types.NoneType]
        return None if value is None else _value(some[0], value)
    if origin is list:
        return [_value(inner[0], v) for v in _is(list, value)]
    if origin is tuple:
        return tuple(_value(inner[0], v) for v in _is(list, value))
    if origin is dict:
        return {k: _value(inner[1], v) for k, v in _is(dict, value).items()}
    if hint is float:
        return math.nan if value is None else float(value)
    return _is(hint, value)


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r}, expected a {kind.__name__}")
    return value
