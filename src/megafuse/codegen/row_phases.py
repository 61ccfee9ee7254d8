"""A row-wise Body in phases: steps over the row, each with the reductions that can be done in it,
then the results.

A term's level is the number of steps that must be complete before it is known. What depends on
reductions and numbers alone is the same for the whole row: it is computed once, after its step.
What two phases need of each element, and costs more than a load, is kept between them; not what is
steady: made from operands too that are the same all along the row, so that compilers compute it
once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from megafuse.codegen.body import (
    Applied,
    Body,
    Fetched,
    Loaded,
    Reduced,
    Scalar,
    Term,
    Written,
    arguments,
    terms,
)
from megafuse.codegen.variant import BYTES

_WORTH_KEEPING = 8  # multiplications: a store and a load of the cache, and some


class Phases:
    """What is computed when. Phase S is step S; phase `steps` makes the results."""

    def __init__(self, body: Body, runs: Collection[Fetched] = ()) -> None:
        self.body, self.runs = body, runs  # `runs` are given as operands are
        self.order = terms(body)
        self.level: dict[Term, int] = {}
        self.uniform: dict[Term, bool] = {}
        self.steady: dict[Term, bool] = {}
        self.users: dict[Term, list[Term]] = defaultdict(list)
        for term in self.order:
            args = arguments(term)
            below = max((self.level[arg] for arg in args), default=0)
            self.level[term] = below + 1 if isinstance(term, Reduced) else below
            self.uniform[term] = isinstance(term, (Reduced, Scalar, Written)) or (
                bool(args) and all(self.uniform[arg] for arg in args)
            )
            self.steady[term] = (
                self.uniform[term]
                or (isinstance(term, Loaded) and term.steady)
                or (bool(args) and all(self.steady[arg] for arg in args))
            )
            for arg in args:
                self.users[arg].append(term)
        self.steps = max(self.level.values())
        self.reductions = [
            [t for t in self.order if isinstance(t, Reduced) and self.level[t] == step + 1]
            for step in range(self.steps)
        ]
        self.kept = self._kept()

    def wanted(self, phase: int) -> list[Term]:
        """What a phase computes of each element."""
        if phase == self.steps:
            return list(self.body.outputs)
        return [reduction.arg for reduction in self.reductions[phase]]

    def is_field(self, term: Term) -> bool:
        """Whether Row has it: known once a row, and used beyond the step that finds it."""
        if not self.uniform[term] or self.level[term] == 0:
            return False
        asked = term in self.body.outputs or term in self.body.row_outputs
        return asked or any(
            not self.uniform[user] or self.level[user] > self.level[term]
            for user in self.users[term]
        )

    @property
    def held(self) -> frozenset[int]:
        """The operands that steps need."""
        found: set[int] = set()
        for step in range(self.steps):
            needed = self._elementwise(self.wanted(step))
            found |= {term.operand for term in needed if isinstance(term, Loaded)}
        return frozenset(found)

    @property
    def kept_bytes(self) -> int:
        """Of an element, in registers."""
        return sum(max(BYTES[term.dtype], 4) for term in self.kept)

    # ---- what is kept

    def _elementwise(self, wanted: list[Term]) -> set[Term]:
        """All terms of each element that these are made from, with themselves."""
        found: set[Term] = set()
        stack = [term for term in wanted if not self.uniform[term]]
        while stack:
            term = stack.pop()
            if term not in found:
                found.add(term)
                if term not in self.runs:
                    stack += [arg for arg in arguments(term) if not self.uniform[arg]]
        return found

    def _kept(self) -> dict[Term, int]:
        """Terms to keep, each with the phase that computes it."""
        phases = [self._elementwise(self.wanted(p)) for p in range(self.steps + 1)]
        first: dict[Term, int] = {}
        shared: set[Term] = set()
        for number, phase in enumerate(phases):
            for term in phase:
                if not isinstance(term, (Applied, Fetched)) or term in self.runs:
                    continue
                if term in first:
                    shared.add(term)
                first.setdefault(term, number)
        return {
            term: first[term]
            for term in self.order
            if term in shared
            and self._cost(term) >= _WORTH_KEEPING
            and (
                any(user not in shared for user in self.users[term])
                or term in self.body.outputs
                or not self.users[term]
            )
        }

    def _cost(self, term: Term) -> int:
        """In multiplications for each element, of computing it from its operands."""
        return sum(
            t.prim.cost if isinstance(t, Applied) else 8 if isinstance(t, Fetched) else 0
            for t in self._elementwise([term])
            if t not in self.runs and not self.steady[t]
        )
