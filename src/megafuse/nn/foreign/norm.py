"""RMS norms and layer norms over the last dimension: LlamaRMSNorm, T5LayerNorm, GemmaRMSNorm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.nn.foreign import trial
from megafuse.nn.foreign.match import Match
from megafuse.nn.foreign.subclass import Foreign
from megafuse.ops.layer_norm import layer_norm
from megafuse.ops.rms_norm import rms_norm

_EPS = re.compile(r"(^|_)eps(ilon)?($|_)")  # eps, variance_epsilon, norm_eps; not max_steps


@dataclass
class NormRoles:
    """The names of its Parameters and of its eps. `offset`: it scales by 1 + weight, as Gemma."""

    weight: str
    bias: str | None
    eps: str
    centred: bool  # it takes the mean off: a layer norm
    offset: bool = False

    @property
    def kind(self) -> str:
        return "LayerNorm" if self.centred else "RMSNorm"


class ForeignNorm(Foreign):
    """x / √(mean(x²) + eps)·weight, or a layer norm, under the names the Parameters have.

    With a weight of another dtype than x its own forward runs: Llama's gives the wider of the two.
    """

    megafuse_roles: NormRoles

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        roles = self.megafuse_roles
        weight = getattr(self, roles.weight)
        x = args[0] if len(args) == 1 and not kwargs else None
        if x is None or x.dtype != weight.dtype or x.shape[-1:] != weight.shape:
            return super().forward(*args, **kwargs)  # type: ignore[misc, no-any-return]
        eps = getattr(self, roles.eps)
        if roles.centred:
            bias = None if roles.bias is None else getattr(self, roles.bias)
            return layer_norm(x, weight, bias, eps)
        return rms_norm(x, one_more(weight) if roles.offset else weight, eps)


def one_more(weight: Tensor) -> Tensor:
    """1 + weight in float32 at least: near 1 a bfloat16 has two decimal digits."""
    return 1 + (weight.float() if weight.dtype.itemsize < 4 else weight)


def recognise(module: nn.Module) -> Match | str | None:
    """None: it does not look like a norm."""
    eps = [
        name
        for name, value in vars(module).items()
        if _EPS.search(name) and value.__class__ is float
    ]
    if not eps or module._modules or isinstance(module, Foreign):
        return None
    held = {name: p for name, p in module._parameters.items() if p is not None}
    if not held or module._buffers or len({p.shape for p in held.values()}) > 1:
        return "a norm, but not one over the last dimension with a weight"
    if next(iter(held.values())).dim() != 1:
        return "its weight has several dimensions; the op's rows are the last one alone"
    if tied := trial.tied_to_the_original(module):
        return f"its attribute {tied} leads back to it, so it cannot be tried on a copy"
    try:
        for roles in _candidates(list(held), eps):
            if _computes(module, roles, len(next(iter(held.values())))):
                return Match(ForeignNorm, roles, roles.kind)
    except Exception as error:  # another library's forward may raise anything
        return trial.words(error)
    return "a copy of it computes neither a layer norm nor an RMS norm over the last dimension"


def _candidates(names: list[str], eps: list[str]) -> Iterator[NormRoles]:
    for at in eps:
        if len(names) == 1:
            yield NormRoles(names[0], None, at, centred=False)
            yield NormRoles(names[0], None, at, centred=False, offset=True)
            yield NormRoles(names[0], None, at, centred=True)
        elif len(names) == 2:
            yield NormRoles(names[0], names[1], at, centred=True)
            yield NormRoles(names[1], names[0], at, centred=True)


def _computes(module: nn.Module, roles: NormRoles, width: int) -> bool:
    """Whether a copy with random weights does, on rows so small that eps counts and on others."""
    names = [name for name in (roles.weight, roles.bias) if name is not None]
    drawn = {name: nn.Parameter(trial.random(width, dtype=torch.float32)) for name in names}
    eps = getattr(module, roles.eps)
    x = trial.random(2, 3, width, dtype=torch.float32) + 0.5
    x = x * torch.tensor([[1.0, eps**0.5, 30.0]])[..., None]

    def formula(x: Tensor) -> Tensor:
        weight = drawn[roles.weight] + roles.offset
        bias = None if roles.bias is None else drawn[roles.bias]
        if roles.centred:
            return F.layer_norm(x, (width,), weight, bias, eps)
        return F.rms_norm(x, (width,), weight, eps)

    if not trial.agrees(trial.copied(module, drawn), formula, x, rtol=1e-4):
        return False
    narrow = trial.copied(module, {name: nn.Parameter(p.bfloat16()) for name, p in drawn.items()})
    return type(module).forward(narrow, x.bfloat16()).dtype == torch.bfloat16
