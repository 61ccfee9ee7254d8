"""The table of rules: which function lowers which ATen overloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from megafuse.graph.lowering.builder import Builder

Rule = Callable[..., Any]  # returns a Value, or a tuple of these
Target = Any  # an OpOverload, an OpOverloadPacket, or one of Python's operators
F = TypeVar("F", bound=Rule)
RULES: dict[Any, Rule] = {}


class NotLowered(Exception):
    """Raised by a rule for arguments that it has no IR for: the operation becomes an Extern."""


def rule(*targets: Target) -> Callable[[F], F]:
    """The function lowers these: overloads, or all overloads of a packet that are not in place.

    It gets the Builder, then the arguments: tensors and symbolic floats as Values, symbolic ints as
    expressions. It returns a Value, or a tuple of these.
    """

    def enter(function: F) -> F:
        for target in targets:
            for overload in overloads(target):
                RULES[overload] = function
        return function

    return enter


def overloads(target: Target) -> list[Any]:
    """Those of a packet that are not in place, or the overload itself."""
    if not isinstance(target, torch._ops.OpOverloadPacket):
        return [target]
    found = [getattr(target, str(name)) for name in target.overloads()]
    return [o for o in found if not o._schema.is_mutable]


__all__ = ["RULES", "Builder", "NotLowered", "Rule", "overloads", "rule"]
