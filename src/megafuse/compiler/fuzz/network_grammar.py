"""A random model: layers in any order, each tried in eager on both sets of sizes."""

from __future__ import annotations

import random
import re
from typing import Any

import torch
from torch import Tensor

from megafuse.compiler.fuzz.arguments import arguments
from megafuse.compiler.fuzz.layers import EVERYWHERE, OF_RANK
from megafuse.compiler.fuzz.network import Network
from megafuse.compiler.fuzz.program import RUNS, Argument, Statement

DTYPES = ("float32", "float32", "float32", "float32", "bfloat16", "float64")
FEWEST, MOST = 2, 6  # layers
WIDTHS = (3, 4, 5, 6, 8, 12, 16)
LENGTHS = {2: (2, 3, 5, 8, 13, 17), 3: (3, 4, 5, 8, 13), 4: (4, 5, 6, 9), 5: (3, 4, 5)}
MOST_ELEMENTS, LARGEST = 8_000, 1e3


def generate(seed: int, index: int) -> Network:
    """The index-th network of a seed."""
    return _Grammar(random.Random(f"network {seed} {index}"), index).network()


class _Grammar:
    def __init__(self, chance: random.Random, index: int) -> None:
        self.chance, self.seed = chance, index
        self.layers: list[tuple[str, str]] = []
        self.statements: list[Statement] = []
        self.training = chance.random() < 0.6
        self.gradients, self.optimize = chance.random() < 0.85, chance.random() < 0.75

    def network(self) -> Network:
        chance = self.chance
        given = self.argument()
        with torch.no_grad():
            inputs = [arguments(self.made((given,)), run)[0] for run in range(RUNS)]
            self.known: dict[str, list[Tensor]] = {given.name: inputs}
            wanted = chance.randint(FEWEST, MOST)
            for _ in range(30 * wanted):
                if len(self.statements) >= wanted:
                    break
                self.layer()
        names = list(self.known)
        more = [name for name in names[1:-1] if chance.random() < 0.15]
        return self.made((given,), (names[-1], *more)).without_dead_code()

    def made(self, given: tuple[Argument, ...], results: tuple[str, ...] = ()) -> Network:
        return Network(
            given,
            tuple(self.statements),
            results,
            self.seed,
            layers=tuple(self.layers),
            training=self.training,
            gradients=self.gradients,
            optimize=self.optimize,
        )

    def argument(self) -> Argument:
        """Batch and lengths are other ones in each run; channels, or the last dimension, not."""
        chance = self.chance
        rank = chance.choice((2, 3, 3, 4, 4, 5))
        fixed = {rank - 1} if rank == 2 else chance.choice(({1}, {1, rank - 1}, {1, rank - 1}))
        width = {d: chance.choice(WIDTHS) for d in fixed}
        each = tuple(
            tuple(width.get(d) or chance.choice(LENGTHS[rank]) for d in range(rank))
            for _ in range(RUNS)
        )
        layouts = ("contiguous", "contiguous", "contiguous", "transposed", "channels_last")
        layout = chance.choice(layouts)
        # PyTorch crashes in the backward of a group norm of channels-last images, if these need no
        # gradient.
        wanted = layout == "channels_last" or chance.random() < 0.8
        return Argument("a0", chance.choice(DTYPES), each, layout=layout, requires_grad=wanted)

    def layer(self) -> None:
        chance = self.chance
        name = chance.choice([*list(self.known)[-1:] * 24, *self.known])
        kinds = EVERYWHERE + OF_RANK.get(self.known[name][0].dim(), [])
        _, kind = chance.choices(kinds, [weight for weight, _ in kinds])[0]
        module, _, text = _in_two(chance.choice(kind)).rpartition(" -> ")
        fields = set(re.findall(r"{(\w+)}", module + text))
        chosen = self.chosen(name, fields)
        if chosen is None:
            return
        target = f"v{len(self.statements)}"
        chosen |= {"x": name, "m": f"self.m{len(self.layers)}", "o": target}
        text = _filled(text, chosen)
        statement = Statement((target,), text if "o" in fields else f"{target} = {text}")
        layers = [*self.layers, (f"m{len(self.layers)}", _filled(module, chosen))]
        self.try_out(statement, layers if module else self.layers)

    def chosen(self, name: str, fields: set[str]) -> dict[str, str] | None:
        """What stands for the fields, None where nothing can."""
        chance, (one, other) = self.chance, self.known[name]
        rank = one.dim()
        if rank < 2:
            return None
        like = [n for n, runs in self.known.items() if runs[0].shape == one.shape]
        one_dim, another = chance.sample(range(rank), 2)
        found = {"n": str(chance.choice(WIDTHS)), "d": str(one_dim), "e": str(another)}
        found["y"] = chance.choice(like)
        for field, dim in (("s1", 1), ("sl", -1), ("g", 1)):
            if field in fields and one.shape[dim] != other.shape[dim]:
                return None
            found[field] = str(one.shape[dim])
        divisors = [n for n in range(1, one.shape[1] + 1) if one.shape[1] % n == 0]
        return {**found, "g": str(chance.choice(divisors))}

    def try_out(self, statement: Statement, layers: list[tuple[str, str]]) -> None:
        """Keeps the statement if eager takes it in both runs, and its results are tame."""
        before, was = self.layers, self.statements
        self.layers, self.statements = layers, [*was, statement]
        (target,) = statement.targets
        try:
            runs = [self.value(target, run) for run in range(RUNS)]
        except Exception:
            runs = []
        if len(runs) == RUNS and all(map(_is_tame, runs)) and runs[0].dim() == runs[1].dim():
            self.known[target] = runs
        else:
            self.layers, self.statements = before, was

    def value(self, target: str, run: int) -> Any:
        statement = self.statements[-1]
        known = [name for name in self.known if name in statement.uses]
        given = tuple(Argument(n, _dtype(self.known[n][0]), ()) for n in known)
        alone = Network(
            given,
            (statement,),
            (target,),
            self.seed,
            layers=tuple(e for e in self.layers if f"self.{e[0]}(" in statement.text),
            training=self.training,
        )
        (made,) = alone.function()(*(self.known[name][run] for name in known))
        return made


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _in_two(template: str) -> str:
    alone = template.startswith("nn.") and " -> " not in template
    return f"{template} -> {{m}}({{x}})" if alone else template


def _filled(text: str, chosen: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda found: chosen[found[1]], text)


def _is_tame(value: Any) -> bool:
    if not isinstance(value, Tensor) or not 0 < value.numel() <= MOST_ELEMENTS or value.dim() > 5:
        return False
    return bool(value.isfinite().all()) and bool(value.abs().max() <= LARGEST)
