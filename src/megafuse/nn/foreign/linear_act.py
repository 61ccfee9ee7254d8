"""linear, activation, and at most one part after them: BertIntermediate, BERT's head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from megafuse.nn import activation
from megafuse.nn.foreign.match import Match, tried
from megafuse.nn.foreign.parts import Parts, Roles
from megafuse.nn.foreign.subclass import Foreign
from megafuse.nn.linear_gelu import linear_act


class ForeignLinearAct(Foreign):
    """then(act(linear(x))), under the names the parts have; `then` is called, if there is one."""

    megafuse_roles: Roles

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        roles, part = self.megafuse_roles, self._modules
        if len(args) != 1 or kwargs or not roles.hold(self):
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        x = linear_act(args[0], part[roles.linears[0]], roles.act)  # type: ignore[arg-type]
        return part[roles.then](x) if roles.then else x  # type: ignore[misc, no-any-return]


def recognise(parts: Parts) -> Match | str:
    """Of a module that has one linear layer, an activation and at most one other part."""
    (act,) = parts.acts.values()
    if act not in activation.FUNCTIONS:
        return f"{act} after a linear layer has no fused form (relu and gelu have)"
    roles = tried(parts, _candidates(parts), _formula, "act(linear(x))")
    kind = "LinearReLU" if act == "relu" else "LinearGELU"
    return roles if isinstance(roles, str) else Match(ForeignLinearAct, roles, kind)


def _candidates(parts: Parts) -> Iterator[Roles]:
    for then in (None, *parts.others, *parts.dropouts):
        yield Roles.in_(parts, tuple(parts.linears), then=then)


def _formula(part: dict[str, Any], roles: Roles, x: Tensor) -> Tensor:
    hidden: Tensor = part[roles.act_at](part[roles.linears[0]](x))
    return part[roles.then](hidden) if roles.then else hidden
