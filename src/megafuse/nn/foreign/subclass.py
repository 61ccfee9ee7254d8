"""A module of another library with a forward of ours: a subclass of its class, made for it."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

ROLES = "megafuse_roles"


class Foreign(nn.Module):
    """What `fused_class` puts before a class of another library.

    The instance remembers which of its parts has which role, by name: a child that is replaced
    later, by an adapter say, has the role of the one before. `forward` of a subclass runs the fused
    op where it may, and `super().forward`, the library's own, where not.
    """

    def _get_name(self) -> str:
        return f"Fused{type(self).__name__}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled by the two classes it is made of: the made one can be found nowhere."""
        _, (made, *rest), *state = super().__reduce_ex__(protocol)
        ours, theirs = made.__bases__
        return (_new, (ours, theirs, *rest), *state)


def _new(ours: type[Foreign], theirs: type[nn.Module], *args: Any) -> nn.Module:
    made = fused_class(ours, theirs)
    return made.__new__(made, *args)


@functools.cache
def fused_class(ours: type[Foreign], theirs: type[nn.Module]) -> type[nn.Module]:
    """The subclass of both, by the name of `theirs`: libraries look modules up by that."""
    names = {"__module__": ours.__module__, "__qualname__": theirs.__qualname__}
    return type(theirs.__name__, (ours, theirs), {**names, "__doc__": ours.__doc__})
