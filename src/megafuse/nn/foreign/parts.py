"""The parts of a module, by what they are: linear layers, an activation, dropouts, the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from megafuse.nn import activation
from megafuse.nn.foreign import trial
from megafuse.nn.linear import features
from megafuse.nn.plain import hooked, plain


@dataclass
class Parts:
    """The attributes of a module, by their names there."""

    module: nn.Module
    linears: dict[str, tuple[int, int]] = field(default_factory=dict)  # (in, out)
    acts: dict[str, str] = field(default_factory=dict)  # with the name of what it computes
    dropouts: list[str] = field(default_factory=list)
    identities: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # no parameters, so an activation perhaps
    others: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, module: nn.Module) -> Parts:
        parts = cls(module)
        for name, child in module._modules.items():
            if child is not None:
                parts._sort(name, child)
        if parts.linears:
            for name, value in vars(module).items():
                if callable(value) and (act := activation.computed(value)):
                    parts.acts[name] = act
        return parts

    def _sort(self, name: str, child: nn.Module) -> None:
        if (sizes := features(child)) is not None:
            self.linears[name] = sizes
        elif type(child) is nn.Dropout:
            self.dropouts.append(name)
        elif plain(child, nn.Identity):
            self.identities.append(name)
        elif next(child.parameters(), None) is not None or next(child.buffers(), None) is not None:
            self.others.append(name)
        elif act := activation.computed(child):
            self.acts[name] = act
        else:
            self.unknown.append(name)

    def small(self) -> dict[str, Any]:
        """What stands for each part in a copy for a trial."""
        sizes = sorted({size for pair in self.linears.values() for size in pair})
        small: dict[int, int] = {}
        for i, size in enumerate(sizes):  # twice the width stays twice the width
            small[size] = 2 * small[size // 2] if size / 2 in small else 5 + 3 * i
        stand_ins: dict[str, Any] = {
            name: trial.small_linear(small[inputs], small[outputs])
            for name, (inputs, outputs) in self.linears.items()
        }
        curved = [*self.acts, *self.dropouts, *self.unknown, *self.others]
        stand_ins |= {name: trial.Curve(i) for i, name in enumerate(curved)}
        return stand_ins | {name: nn.Identity() for name in self.identities}


@dataclass
class Roles:
    """Which part does what, by name: a part that is replaced later has the role of the first."""

    linears: tuple[str, ...]
    act_at: str = ""
    act: str = ""
    act_part: Any = None
    hidden_dropout: str | None = None
    dropout: str | None = None
    then: str | None = None
    up_first: bool = False  # where gate and up are halves of one product
    identities: tuple[str, ...] = ()

    @classmethod
    def in_(cls, parts: Parts, linears: tuple[str, ...], **roles: str | None) -> Roles:
        """With the one activation that `parts` has, if it has one."""
        made = cls(linears, identities=tuple(parts.identities), **roles)  # type: ignore[arg-type]
        for made.act_at, made.act in parts.acts.items():
            made.act_part = getattr(parts.module, made.act_at)
        return made

    def hold(self, module: nn.Module) -> bool:
        """Whether the fused forward may run: the parts that it never calls are what they were.

        T5 keeps its second layer in float32 where the first is float16, and casts in between: with
        weights of two dtypes its own forward runs.
        """
        children = module._modules
        if self.act_part is not None:
            act = children.get(self.act_at, vars(module).get(self.act_at))
            if act is not self.act_part or (isinstance(act, nn.Module) and _called(act)):
                return False
        layers = [children.get(name) for name in self.linears]
        return (
            all(layer is not None for layer in layers)
            and len({_dtype(layer) for layer in layers}) == 1
            and all(plain(children[name], nn.Identity) for name in self.identities)  # type: ignore[arg-type]
        )

    def dropouts(self, children: dict[str, nn.Module | None]) -> list[nn.Module | None]:
        """The hidden one and the last."""
        return [
            None if name is None else children[name] for name in (self.hidden_dropout, self.dropout)
        ]


def _called(act: nn.Module) -> bool:
    return hooked(act) or "forward" in vars(act)


def _dtype(layer: Any) -> Any:
    return getattr(getattr(layer, "weight", None), "dtype", None)
