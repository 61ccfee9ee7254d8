"""The modules, each beside what it replaces: one line here covers a new module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import megafuse.nn as fused
from nn import twins

Factory = Callable[..., nn.Module]
WIDTH, HIDDEN, HEADS = 64, 96, 2
ROWS = (3, 50)  # batch and sequence


@dataclass(frozen=True)
class Case:
    """`make` and `twin` take device and dtype, and give modules with the same parameters."""

    name: str
    make: Factory
    twin: Factory
    tensors: int = 1  # that it is called with

    @property
    def kink(self) -> bool:
        """Whether it holds a relu."""
        made = self.make()
        acts = [getattr(m, "activation", None) for m in made.modules()]
        relu = any(isinstance(m, (fused.LinearReLU, nn.ReLU)) for m in made.modules())
        return relu or any(act in ("relu", F.relu) for act in acts)

    def __str__(self) -> str:
        return self.name

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
        drawn = [torch.randn(*ROWS, WIDTH) for _ in range(self.tensors)]
        return [t.to(device, dtype).requires_grad_() for t in drawn]

    def pair(self, **options: Any) -> tuple[nn.Module, nn.Module]:
        """Ours and torch's with the same values, biases and norm weights being random too."""
        ours, twin = self.make(**options), self.twin(**options)
        with torch.no_grad():
            for parameter in twin.parameters():
                if parameter.dim() == 1:
                    parameter.copy_(torch.randn_like(parameter) / 2 + 0.5)
        ours.load_state_dict(twin.state_dict())
        return ours, twin


def case(name: str, make: Factory, twin: Factory, tensors: int = 1) -> Any:
    return pytest.param(Case(name, make, twin, tensors), id=name)


def _of(cls: Factory, *args: Any, **settings: Any) -> Factory:
    return lambda **options: cls(*args, **settings, **options)


def _block(cls: Factory, **settings: Any) -> Factory:
    settings = {"dropout": 0.0, "batch_first": True, "norm_first": True, **settings}
    return _of(cls, WIDTH, HEADS, HIDDEN, **settings)


def _blocks(name: str, **settings: Any) -> Any:
    torchs = {**settings}
    if torchs.get("activation") == "gelu_tanh":
        torchs["activation"] = nn.GELU("tanh")
    return case(
        f"TransformerBlock{name}",
        _block(fused.TransformerBlock, **settings),
        _block(nn.TransformerEncoderLayer, **copy.deepcopy(torchs)),
    )


class _First(fused.Attention):
    """The pair's first, as the twin gives it."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


def _mlp(cls: type[nn.Sequential], **options: Any) -> nn.Sequential:
    return cls(
        nn.LayerNorm(WIDTH, **options),
        nn.Linear(WIDTH, HIDDEN, **options),
        nn.GELU(),
        nn.Dropout(0.0),
        nn.Linear(HIDDEN, WIDTH, **options),
        nn.ReLU(),
        nn.Linear(WIDTH, 24, **options),
    )


CASES = [
    case(
        "LinearReLU", _of(fused.LinearReLU, WIDTH, 40), _of(twins.LinearAct, WIDTH, 40, act="relu")
    ),
    case(
        "LinearReLU-no-bias",
        _of(fused.LinearReLU, WIDTH, 40, False),
        _of(twins.LinearAct, WIDTH, 40, False, act="relu"),
    ),
    case(
        "LinearGELU", _of(fused.LinearGELU, WIDTH, 40), _of(twins.LinearAct, WIDTH, 40, act="gelu")
    ),
    case(
        "LinearGELU-tanh",
        _of(fused.LinearGELU, WIDTH, 40, approximate="tanh"),
        _of(twins.LinearAct, WIDTH, 40, act="gelu_tanh"),
    ),
    case(
        "GELULinear", _of(fused.GELULinear, WIDTH, 40), _of(twins.ActLinear, WIDTH, 40, act="gelu")
    ),
    case(
        "LayerNormLinear", _of(fused.LayerNormLinear, WIDTH, 40), _of(twins.NormLinear, WIDTH, 40)
    ),
    case("LayerNorm", _of(fused.LayerNorm, WIDTH), _of(nn.LayerNorm, WIDTH)),
    case(
        "LayerNorm-plain",
        _of(fused.LayerNorm, WIDTH, 1e-3, False),
        _of(nn.LayerNorm, WIDTH, 1e-3, False),
    ),
    case(
        "LayerNorm-no-bias",
        _of(fused.LayerNorm, WIDTH, bias=False),
        _of(nn.LayerNorm, WIDTH, bias=False),
    ),
    case(
        "LayerNorm-2d",
        _of(fused.LayerNorm, [ROWS[1], WIDTH]),
        _of(nn.LayerNorm, [ROWS[1], WIDTH]),
    ),
    case("RMSNorm", _of(fused.RMSNorm, WIDTH), _of(nn.RMSNorm, WIDTH)),
    case("RMSNorm-eps", _of(fused.RMSNorm, WIDTH, 1e-2), _of(nn.RMSNorm, WIDTH, 1e-2)),
    case(
        "ResidualLayerNorm", _of(fused.ResidualLayerNorm, WIDTH), _of(twins.ResidualNorm, WIDTH), 2
    ),
    case("ResidualRMSNorm", _of(fused.ResidualRMSNorm, WIDTH), _of(twins.ResidualRMS, WIDTH), 2),
    case("FFN", _of(fused.FFN, WIDTH, HIDDEN), _of(twins.FeedForward, WIDTH, HIDDEN)),
    case(
        "FFN-relu-residual",
        _of(fused.FFN, WIDTH, HIDDEN, activation="relu", bias=False),
        _of(twins.FeedForward, WIDTH, HIDDEN, act="relu", bias=False),
        2,
    ),
    case(
        "FFN-tanh",
        _of(fused.FFN, WIDTH, HIDDEN, activation=nn.GELU("tanh")),
        _of(twins.FeedForward, WIDTH, HIDDEN, act="gelu_tanh"),
    ),
    case("SwiGLUFFN", _of(fused.SwiGLUFFN, WIDTH, HIDDEN), _of(twins.LlamaMLP, WIDTH, HIDDEN)),
    case(
        "SwiGLUFFN-residual",
        _of(fused.SwiGLUFFN, WIDTH, HIDDEN, bias=True),
        _of(twins.LlamaMLP, WIDTH, HIDDEN, bias=True),
        2,
    ),
    case(
        "Attention",
        _of(_First, WIDTH, HEADS, batch_first=True),
        _of(twins.SelfAttention, WIDTH, HEADS, batch_first=True),
    ),
    case(
        "Attention-batch-second",
        _of(_First, WIDTH, HEADS, bias=False),
        _of(twins.SelfAttention, WIDTH, HEADS, bias=False),
    ),
    _blocks(""),
    _blocks("-gelu", activation="gelu"),
    _blocks("-tanh", activation="gelu_tanh", batch_first=False),
    _blocks("-no-bias", bias=False),
    _blocks("-post-norm", norm_first=False, activation="gelu"),
    case(
        "Sequential", lambda **o: _mlp(fused.Sequential, **o), lambda **o: _mlp(nn.Sequential, **o)
    ),
]

each = pytest.mark.parametrize("case", CASES)
