"""What changes a model's forward pass, and Dynamo has no guards for: methods that are replaced on a
class, and hooks for all modules (torch.nn.modules.module.register_module_forward_hook)."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn

from megafuse.compiler.seen import Seen

_HOOKS = ("forward", "forward_pre", "backward", "backward_pre")
_CODE = (types.FunctionType, property, staticmethod, classmethod)


class Methods:
    """Those of all classes of a model's modules, as they were when they were noted."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._seen: Seen | None = None  # until the first capture
        self._tells = False

    def note(self) -> None:
        self._kinds = {type(module) for module in self.model.modules()}
        self._methods = [_methods(kind) for kind in self._kinds]
        self._hooks = [list(hooks.items()) for hooks in _global_hooks()]
        self._seen = Seen()
        self.tell(self._seen)
        self._tells = self._seen.freeze(modes=False)

    def tell(self, seen: Seen) -> None:
        for kind in self._kinds:
            seen.attributes(kind)
        for hooks in _global_hooks():
            seen.whole(hooks)

    def settle(self) -> None:
        """After a capture: Dynamo, when it is first used, replaces methods of nn.Module itself."""
        if self._seen is None or (self._tells and not self._seen.holds()):
            self.note()

    def changed(self) -> bool:
        """Since they were noted; they are noted anew then."""
        if self._seen is None or not self._tells or self._seen.holds():
            return False
        methods, hooks = self._methods, self._hooks
        same = methods == [_methods(kind) for kind in self._kinds]
        self.note()
        return not same or hooks != self._hooks


def _methods(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__[:-1]):
        found |= {name: value for name, value in vars(each).items() if isinstance(value, _CODE)}
    return found


def _global_hooks() -> list[dict[int, Any]]:
    module: Any = torch.nn.modules.module
    return [getattr(module, f"_global_{name}_hooks") for name in _HOOKS]
