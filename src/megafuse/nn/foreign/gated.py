"""act(gate(x))·up(x), then down: LlamaMLP, GemmaMLP, T5DenseGatedActDense."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from megafuse.nn.foreign.match import Match, tried
from megafuse.nn.foreign.parts import Parts, Roles
from megafuse.nn.foreign.subclass import Foreign
from megafuse.nn.swiglu_ffn import gated_feed_forward


class ForeignGatedFFN(Foreign):
    """dropout(down(hidden_dropout(act(gate(x))·up(x)))), under the names the parts have."""

    megafuse_roles: Roles

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        roles, part = self.megafuse_roles, self._modules
        if len(args) != 1 or kwargs or not roles.hold(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        gate, up, down = (part[name] for name in roles.linears)
        hidden_dropout, dropout = roles.dropouts(part)
        return gated_feed_forward(args[0], gate, up, roles.act, hidden_dropout, down, dropout)  # type: ignore[arg-type]


def recognise(parts: Parts) -> Match | str:
    """Of a module that has three linear layers and an activation."""
    roles = tried(parts, _candidates(parts), _formula, "dropout(down(act(gate(x))·up(x)))")
    if isinstance(roles, str):
        return roles
    return Match(ForeignGatedFFN, roles, "SwiGLUFFN" if roles.act == "silu" else "GatedFFN")


def _candidates(parts: Parts) -> Iterator[Roles]:
    places = [None, *parts.dropouts]
    sizes = parts.linears
    for gate, up, down in itertools.permutations(sizes):
        if sizes[gate] == sizes[up] and sizes[up][1] == sizes[down][0]:
            for hidden, last in itertools.product(places, places):
                yield Roles.in_(parts, (gate, up, down), hidden_dropout=hidden, dropout=last)


def _formula(part: dict[str, Any], roles: Roles, x: Tensor) -> Tensor:
    gate, up, down = (part[name] for name in roles.linears)
    hidden = part[roles.act_at](gate(x)) * up(x)
    if roles.hidden_dropout:
        hidden = part[roles.hidden_dropout](hidden)
    out: Tensor = down(hidden)
    return part[roles.dropout](out) if roles.dropout else out
