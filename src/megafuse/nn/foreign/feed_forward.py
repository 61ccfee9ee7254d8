"""linear, activation, linear: GPT2MLP, ViTMLP, T5DenseActDense, DistilBERT's FFN, timm's Mlp."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from megafuse.nn import activation
from megafuse.nn.ffn import feed_forward
from megafuse.nn.foreign.match import Match, tried
from megafuse.nn.foreign.parts import Parts, Roles
from megafuse.nn.foreign.subclass import Foreign


class ForeignFFN(Foreign):
    """dropout(linear2(hidden_dropout(act(linear1(x))))), under the names the parts have."""

    megafuse_roles: Roles

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        roles, part = self.megafuse_roles, self._modules
        if len(args) != 1 or kwargs or not roles.hold(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        linear1, linear2 = (part[name] for name in roles.linears)
        hidden_dropout, dropout = roles.dropouts(part)
        return feed_forward(args[0], linear1, roles.act, hidden_dropout, linear2, dropout)  # type: ignore[arg-type]


def recognise(parts: Parts) -> Match | str:
    """Of a module that has two linear layers and an activation."""
    (act,) = parts.acts.values()
    if act not in activation.FUNCTIONS:
        return f"{act} between two linear layers has no fused form (relu and gelu have)"
    roles = tried(parts, _candidates(parts), _formula, "dropout(linear(act(linear(x))))")
    return roles if isinstance(roles, str) else Match(ForeignFFN, roles, "FFN")


def _candidates(parts: Parts) -> Iterator[Roles]:
    places = [None, *parts.dropouts]
    for first, second in itertools.permutations(parts.linears):
        if parts.linears[first][1] == parts.linears[second][0]:
            for hidden, last in itertools.product(places, places):
                yield Roles.in_(parts, (first, second), hidden_dropout=hidden, dropout=last)


def _formula(part: dict[str, Any], roles: Roles, x: Tensor) -> Tensor:
    linear1, linear2 = (part[name] for name in roles.linears)
    hidden = part[roles.act_at](linear1(x))
    if roles.hidden_dropout:
        hidden = part[roles.hidden_dropout](hidden)
    out: Tensor = linear2(hidden)
    return part[roles.dropout](out) if roles.dropout else out
