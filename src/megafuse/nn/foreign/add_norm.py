"""linear, dropout, the sum with the residual, layer norm: BertOutput and BertSelfOutput."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from megafuse.nn.foreign.match import Match, tried
from megafuse.nn.foreign.parts import Parts, Roles
from megafuse.nn.foreign.subclass import Foreign
from megafuse.nn.residual_layer_norm import residual_norm


class ForeignAddNorm(Foreign):
    """norm(dropout(linear(x)) + residual), under the names the parts have."""

    megafuse_roles: Roles

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        roles, part = self.megafuse_roles, self._modules
        if len(args) != 2 or kwargs or not roles.hold(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        x, residual = part[roles.linears[0]](args[0]), args[1]  # type: ignore[misc]
        norm, (_, dropout) = part[roles.then], roles.dropouts(part)  # type: ignore[index]
        if x.shape == residual.shape:
            return residual_norm(x, residual, norm, dropout)[0]  # type: ignore[arg-type]
        return norm((x if dropout is None else dropout(x)) + residual)  # type: ignore[misc, no-any-return]


def recognise(parts: Parts) -> Match | str:
    """Of a module that has one linear layer, a LayerNorm, and perhaps a dropout."""
    roles = tried(parts, _candidates(parts), _formula, "norm(dropout(linear(x)) + residual)", 2)
    return roles if isinstance(roles, str) else Match(ForeignAddNorm, roles, "ResidualLayerNorm")


def _candidates(parts: Parts) -> Iterator[Roles]:
    for norm, dropout in itertools.product(parts.others, (*parts.dropouts, None)):
        yield Roles.in_(parts, tuple(parts.linears), then=norm, dropout=dropout)


def _formula(part: dict[str, Any], roles: Roles, x: Tensor, residual: Tensor) -> Tensor:
    out = part[roles.linears[0]](x)
    if roles.dropout:
        out = part[roles.dropout](out)
    return part[roles.then](out + residual)  # type: ignore[no-any-return]
