"""A program as data: arguments, statements, results. Its source is what fuse is given."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

RUNS = 2  # each program is called with so many sets of sizes and numbers

_NAME = re.compile(r"\b[anv]\d+\b")


@dataclass(frozen=True)
class Argument:
    """A tensor with a shape for each run, or (dtype "int" or "float") a number for each."""

    name: str
    dtype: str
    each: tuple[Any, ...]
    layout: str = "contiguous"
    requires_grad: bool = False
    values: str = "normal"

    @property
    def is_number(self) -> bool:
        return self.dtype in ("int", "float")


@dataclass(frozen=True)
class Statement:
    """`text` assigns `targets`."""

    targets: tuple[str, ...]
    text: str

    @property
    def uses(self) -> set[str]:
        return names_in(self.text) - set(self.targets)


@dataclass(frozen=True)
class Program:
    """A function of `arguments`, run once for each of their sets."""

    arguments: tuple[Argument, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    seed: int = 0

    @property
    def source(self) -> str:
        lines = [f"def program({', '.join(a.name for a in self.arguments)}):"]
        lines += [f"    {statement.text}" for statement in self.statements]
        returned = ", ".join(self.results) + ("," if len(self.results) == 1 else "")
        return "\n".join([*lines, f"    return {returned}", ""])

    def function(self, exact: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """`exact`: with float64 for every float."""
        source = self.source
        if exact:
            source = re.sub(r"torch\.(b?float16|float32)", "torch.float64", source)
        function: Callable[..., tuple[torch.Tensor, ...]] = defined(source)
        return function

    @staticmethod
    def of_source(source: str, arguments: Iterable[Argument], seed: int = 0) -> Program:
        """From the text that `source` gives: one statement a line."""
        lines = [line.strip() for line in source.strip().splitlines()]
        statements = [Statement(_targets(line), line) for line in lines[1:-1]]
        results = tuple(n.strip() for n in lines[-1].removeprefix("return").split(",") if n.strip())
        return Program(tuple(arguments), tuple(statements), results, seed)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def of_json(data: dict[str, Any]) -> Program:
        arguments = [
            Argument(
                **{**a, "each": tuple(tuple(e) if isinstance(e, list) else e for e in a["each"])}
            )
            for a in data["arguments"]
        ]
        statements = [Statement(tuple(s["targets"]), s["text"]) for s in data["statements"]]
        return Program(tuple(arguments), tuple(statements), tuple(data["results"]), data["seed"])

    def without_dead_code(self) -> Program:
        """Without the statements and arguments that no result needs."""
        wanted = set(self.results)
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if wanted & set(statement.targets):
                kept.append(statement)
                wanted |= statement.uses
        arguments = tuple(a for a in self.arguments if a.name in wanted)
        return replace(self, arguments=arguments, statements=tuple(reversed(kept)))


def _targets(line: str) -> tuple[str, ...]:
    sides = re.findall(r"(?:^|; )([^=;]*) = ", line)
    names = [name.strip() for side in sides for name in side.split(",")]
    return tuple(dict.fromkeys(name for name in names if _NAME.fullmatch(name)))


def names_in(text: str) -> set[str]:
    return set(_NAME.findall(text))


def defined(source: str) -> Any:
    """What this source calls `program`. Its lines can be looked up, as if it were a file."""
    name = f"<program {hash(source) & 0xFFFFFFFF:08x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    exec(compile(source, name, "exec"), scope)
    return scope["program"]


def floats(tensors: Iterable[Any]) -> list[torch.Tensor]:
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
