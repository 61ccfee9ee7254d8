"""gate and up in one linear layer, act(gate)·up, then down: Phi3MLP, GlmMLP."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from megafuse.nn.foreign.match import Match, tried
from megafuse.nn.foreign.parts import Parts, Roles
from megafuse.nn.foreign.subclass import Foreign
from megafuse.ops.swiglu import swiglu


class ForeignPackedSwiGLU(Foreign):
    """dropout(down(hidden_dropout(silu(gate)·up))), gate and up the halves of first(x).

    Two halves of one product are strided views, which the op takes as they are.
    """

    megafuse_roles: Roles

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        roles, part = self.megafuse_roles, self._modules
        if len(args) != 1 or kwargs or not roles.hold(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        first, down = (part[name] for name in roles.linears)
        hidden_dropout, dropout = roles.dropouts(part)
        halves = first(args[0]).chunk(2, -1)  # type: ignore[misc]
        hidden = swiglu(*(reversed(halves) if roles.up_first else halves))
        out = down(hidden if hidden_dropout is None else hidden_dropout(hidden))  # type: ignore[misc]
        return out if dropout is None else dropout(out)  # type: ignore[no-any-return]


def is_packed(parts: Parts) -> bool:
    """Whether one of two linear layers gives twice what the other takes."""
    sizes = parts.linears.values()
    return any(first[1] == 2 * down[0] for first, down in itertools.permutations(sizes, 2))


def recognise(parts: Parts) -> Match | str:
    """Of a module that has two linear layers, the first twice as wide, and an activation."""
    (act,) = parts.acts.values()
    if act != "silu":
        return f"gate and up in one layer have no fused form with {act} (silu has)"
    roles = tried(parts, _candidates(parts), _formula, "dropout(down(act(gate)·up))")
    return roles if isinstance(roles, str) else Match(ForeignPackedSwiGLU, roles, "SwiGLU")


def _candidates(parts: Parts) -> Iterator[Roles]:
    places = [None, *parts.dropouts]
    for first, down in itertools.permutations(parts.linears):
        if parts.linears[first][1] == 2 * parts.linears[down][0]:
            for hidden, last, up_first in itertools.product(places, places, (False, True)):
                made = Roles.in_(parts, (first, down), hidden_dropout=hidden, dropout=last)
                made.up_first = up_first
                yield made


def _formula(part: dict[str, Any], roles: Roles, x: Tensor) -> Tensor:
    first, down = (part[name] for name in roles.linears)
    halves = first(x).chunk(2, -1)
    gate, up = reversed(halves) if roles.up_first else halves
    hidden = part[roles.act_at](gate) * up
    if roles.hidden_dropout:
        hidden = part[roles.hidden_dropout](hidden)
    out: Tensor = down(hidden)
    return part[roles.dropout](out) if roles.dropout else out
