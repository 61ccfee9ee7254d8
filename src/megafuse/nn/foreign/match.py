"""What recognises a module: the class it gets, the roles of its parts, the name of what it does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from megafuse.nn.foreign import trial
from megafuse.nn.foreign.parts import Parts, Roles
from megafuse.nn.foreign.subclass import ROLES, Foreign, fused_class

# act(linear(x)) and the like, of the stand-ins by name, the roles and the inputs.
Formula = Callable[..., Tensor]


@dataclass
class Match:
    """A module that computes what `kind`, one of our modules, does."""

    ours: type[Foreign]
    roles: Any
    kind: str

    def give(self, module: nn.Module) -> None:
        """The class changes; Parameters, children, hooks and references stay."""
        module.__class__ = fused_class(self.ours, type(module))
        module.__dict__[ROLES] = self.roles


def tried(
    parts: Parts, candidates: Iterable[Roles], formula: Formula, words: str, inputs: int = 1
) -> Roles | str:
    """The first roles with which a small copy of the module computes the formula; or why none.

    The first input is as wide as that of the first linear layer, a second as its output.
    """
    if tied := trial.tied_to_the_original(parts.module):
        return f"its attribute {tied} leads back to it, so it cannot be tried on a copy"
    other = f"a small copy of it computes something else than {words}"
    failed = None
    stand_ins = parts.small()
    for roles in candidates:
        first = stand_ins[roles.linears[0]]
        widths = (first.in_features, first.out_features)[:inputs]
        drawn = [trial.random(2, 3, width) for width in widths]
        try:
            twin = trial.copied(parts.module, stand_ins)
            if trial.agrees(twin, functools.partial(formula, stand_ins, roles), *drawn):
                return roles
            failed = other
        except Exception as error:  # another library's forward may raise anything
            failed = failed or trial.words(error)
    return failed or f"its linear layers do not fit together as in {words}"
