"""A random model as data: a Program whose statements call modules.

Weights are the same for the same seed, by their names: what is left of a model that was made
smaller has the weights it had.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from megafuse.compiler.fuzz.program import Argument, Program, defined

SETTINGS = ("training", "gradients", "optimize")


@dataclass(frozen=True)
class Network(Program):
    """`layers` are its modules, ("m0", "nn.Linear(5, 7)"), called in statements as self.m0."""

    layers: tuple[tuple[str, str], ...] = ()
    training: bool = False
    gradients: bool = True
    optimize: bool = True  # by mf.optimize; else by torch.compile with our backend

    @property
    def source(self) -> str:
        lines = [
            "class Network(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]
        lines += [f"        self.{name} = {made}" for name, made in self.layers]
        lines += [f"    def forward(self, {', '.join(a.name for a in self.arguments)}):"]
        lines += [f"        {statement.text}" for statement in self.statements]
        returned = ", ".join(self.results) + ("," if len(self.results) == 1 else "")
        return "\n".join([*lines, f"        return {returned}", "program = Network()", ""])

    def function(self, exact: bool = False) -> nn.Module:
        model: Any = defined(self.source)
        model.to(getattr(torch, self.arguments[0].dtype)).train(self.training)
        self.fill(model)
        return model.double() if exact else model  # type: ignore[no-any-return]

    @staticmethod
    def of_source(source: str, arguments: Iterable[Argument], seed: int = 0, **how: Any) -> Network:
        """From the text that `source` gives, but for its last line."""
        text, _, body = source.partition("def forward")
        found = re.findall(r"self\.(m\d+) = (.*)", text)
        body = body.partition("program = ")[0]
        of = Program.of_source(body, arguments, seed)
        return Network(of.arguments, of.statements, of.results, seed, tuple(found), **how)

    @staticmethod
    def of_json(data: dict[str, Any]) -> Network:
        of = Program.of_json(data)
        layers = tuple((name, made) for name, made in data["layers"])
        how = {name: data[name] for name in SETTINGS}
        return Network(of.arguments, of.statements, of.results, of.seed, layers, **how)

    def fill(self, model: nn.Module) -> None:
        """Weights and buffers as the seed has them."""
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(_weight(name, weight.shape, self.seed))
            for name, buffer in model.named_buffers():
                buffer.fill_(1 if name.endswith("var") else 0)

    def without_dead_code(self) -> Network:
        made = super().without_dead_code()
        assert isinstance(made, Network)
        called = "".join(statement.text for statement in made.statements)
        kept = tuple(each for each in made.layers if f"self.{each[0]}(" in called)
        return replace(made, layers=kept)


def _weight(name: str, shape: torch.Size, seed: int) -> Tensor:
    random = torch.Generator()  # of the CPU, whatever the default device is
    random.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    drawn = torch.randn(shape, generator=random, dtype=torch.float64, device="cpu")
    if len(shape) > 1:
        return drawn / math.sqrt(max(drawn[0].numel(), 1))
    return drawn / 4 + float(name.endswith("weight"))
