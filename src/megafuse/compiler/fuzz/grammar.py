"""A random program. Each statement is tried in eager as it is drawn, on both sets of arguments:
what fails there, or gives numbers too large, is drawn again. So every program is valid."""

from __future__ import annotations

import random
import string
from dataclasses import replace
from typing import Any

import torch

from megafuse.compiler.fuzz.arguments import LAYOUTS, arguments
from megafuse.compiler.fuzz.program import RUNS, Argument, Program, Statement, floats
from megafuse.compiler.fuzz.statements import KINDS

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "uint8", "int8", "int16")
SIZES = (2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 63, 64, 65, 100, 129, 256, 300)
MOST_ELEMENTS = 20_000
LARGEST = 1e3
FEWEST, MOST = 3, 12  # statements

Environment = dict[str, Any]


def generate(seed: int, index: int) -> Program:
    """The index-th program of a seed."""
    return _Grammar(random.Random(f"{seed} {index}"), index).program()


class _Grammar:
    def __init__(self, chance: random.Random, index: int) -> None:
        self.chance = chance
        self.seed = index
        self.special = chance.random() < 0.04
        self.main_dtype = chance.choice(FLOATS)
        self.gradients = chance.random() < 0.5
        self.statements: list[Statement] = []

    def program(self) -> Program:
        given = self.arguments()
        self.given = Program(tuple(given), (), (), self.seed)
        self.environments = [
            dict(zip([a.name for a in given], arguments(self.given, run), strict=True))
            for run in range(RUNS)
        ]
        wanted = self.chance.randint(FEWEST, MOST)
        for _ in range(20 * wanted):
            if len(self.statements) >= wanted:
                break
            self.statement()
        made = Program(tuple(given), tuple(self.statements), self.results(), self.seed)
        return made.without_dead_code()

    # ---- arguments

    def arguments(self) -> list[Argument]:
        chance = self.chance
        bases = self.shapes()
        made = []
        for at in range(chance.choice((1, 2, 2, 3, 3, 4))):
            dtype = self.main_dtype if chance.random() < 0.8 else chance.choice(FLOATS)
            made.append(self.tensor(f"a{at}", dtype, bases))
        if chance.random() < 0.35:
            made.append(self.tensor(f"a{len(made)}", chance.choice(INTEGERS), bases))
        if chance.random() < 0.35:
            made.append(self.tensor(f"a{len(made)}", "bool", bases))
        if chance.random() < 0.5:
            numbers = tuple(round(chance.uniform(-2, 2), 3) for _ in range(RUNS))
            made.append(Argument("n0", "float", numbers))
        if chance.random() < 0.25:
            made.append(Argument("n1", "int", tuple(chance.randint(2, 5) for _ in range(RUNS))))
        return made

    def shapes(self) -> list[tuple[int, ...]]:
        """A shape for each run: as many dimensions, and ones and zeros at the same places."""
        chance = self.chance
        rank = chance.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4))
        kinds = [chance.choices("s10", (88, 10, 2))[0] for _ in range(rank)]
        while True:
            shapes = []
            for _ in range(RUNS):
                sizes = SIZES if rank < 4 else SIZES[:8]
                shapes.append(tuple(chance.choice(sizes) if k == "s" else int(k) for k in kinds))
            if all(_elements(shape) <= MOST_ELEMENTS // 2 for shape in shapes):
                return shapes

    def tensor(self, name: str, dtype: str, bases: list[tuple[int, ...]]) -> Argument:
        chance, rank = self.chance, len(bases[0])
        first = chance.choice((0, 0, 0, rank - 1, rank)) if rank else 0
        ones = {d for d in range(rank) if chance.random() < 0.12}
        each = tuple(
            tuple(1 if d in ones else size for d, size in enumerate(base))[first:] for base in bases
        )
        is_float = dtype in FLOATS
        return Argument(
            name,
            dtype,
            each,
            layout=chance.choice(("contiguous", "contiguous", *LAYOUTS)),
            requires_grad=is_float and self.gradients and chance.random() < 0.7,
            values="special" if is_float and self.special else "normal",
        )

    # ---- statements

    def statement(self) -> None:
        chance = self.chance
        weights = [weight for weight, _ in KINDS]
        _, kind = chance.choices(KINDS, weights)[0]
        filled = self.filled(chance.choice(kind))
        if filled is None or not self.runs(filled):
            return
        self.statements.append(filled)

    def filled(self, template: str) -> Statement | None:
        """The template with values for its placeholders; None where there are none to choose."""
        chance = self.chance
        fields = {name for _, name, _, _ in string.Formatter().parse(template) if name}
        chosen: dict[str, str] = {}
        for kinds, of in (("xyz", "float"), ("ij", "integer"), ("bc", "bool")):
            for name in sorted(fields & set(kinds)):
                known = self.known(of)
                if not known:
                    return None
                chosen[name] = chance.choice(known + known[-3:] * 2)
        for name, number in (("n", "n0"), ("k", "n1")):
            if name in fields:
                if number not in self.environments[0]:
                    return None
                chosen[name] = number
        for name, of in (("d", "x"), ("di", "i"), ("db", "b")):
            if name in fields:
                rank = self.environments[0][chosen[of]].dim()
                if not rank:
                    return None
                chosen[name] = str(chance.choice((-1, *range(rank))))
        dtype = chance.choice(FLOATS)
        any_dtype = chance.choice((*FLOATS, *INTEGERS, "bool"))
        more = {
            "keep": str(chance.random() < 0.6),
            "f": f"torch.{dtype}",
            "t": f"torch.{any_dtype}",
        }
        count = sum(len(s.targets) for s in self.statements)
        targets = (f"v{count}", f"v{count + 1}") if "p" in fields else (f"v{count}",)
        more |= {"o": targets[0], "p": targets[-1]}
        text = template.format(**chosen, **more)
        return Statement(targets, text if "o" in fields else f"{targets[0]} = {text}")

    def known(self, of: str) -> list[str]:
        found = []
        for name, value in self.environments[0].items():
            if isinstance(value, torch.Tensor):
                integer = "bool" if value.dtype == torch.bool else "integer"
                if of == ("float" if value.is_floating_point() else integer):
                    found.append(name)
        return found

    def runs(self, statement: Statement) -> bool:
        """Whether eager takes it, in both environments; they have its values then."""
        after = []
        for environment in self.environments:
            scope = {**environment, "torch": torch, "F": torch.nn.functional}
            try:
                exec(statement.text, scope)
            except Exception:
                return False
            made = {name: scope[name] for name in statement.targets}
            if not all(map(self.is_tame, made.values())):
                return False
            after.append({**environment, **made})
        news = [[after[run][name] for name in statement.targets] for run in range(RUNS)]
        if [t.dim() for t in news[0]] != [t.dim() for t in news[1]]:
            return False
        self.environments = after
        return True

    def is_tame(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.is_complex():
            return False
        if value.numel() > MOST_ELEMENTS or value.dim() > 5:
            return False
        if self.special or not value.numel():
            return True
        largest = value.detach().abs().max() if value.dtype != torch.bool else torch.tensor(0)
        return bool(largest <= LARGEST)

    # ---- results

    def results(self) -> tuple[str, ...]:
        """The last value and some more: now and then an argument, or the same twice."""
        chance = self.chance
        made = [name for s in self.statements for name in s.targets]
        if not made:
            return (next(n for n, v in self.environments[0].items() if floats([v])),)
        chosen = [made[-1]]
        for name in made[:-1]:
            if chance.random() < 0.25:
                chosen.append(name)
        if chance.random() < 0.04:
            chosen.append(chance.choice(chosen))
        if chance.random() < 0.04:
            tensors = [n for n, v in self.environments[0].items() if isinstance(v, torch.Tensor)]
            chosen.append(chance.choice(tensors))
        chance.shuffle(chosen)
        return tuple(chosen[:6])


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def with_gradients(program: Program, wanted: bool) -> Program:
    """The program with every float argument's requires_grad as told."""
    kept = [replace(a, requires_grad=wanted and a.dtype in FLOATS) for a in program.arguments]
    return replace(program, arguments=tuple(kept))
