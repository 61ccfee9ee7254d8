"""Which row to measure, before anything is drawn or compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megafuse.bench.job import MODES, Mode
from megafuse.bench.result import Choice
from megafuse.registry import Op

# Trailing sizes of an op that wants just so many dimensions: [batch, sequence, embedding] and
# [batch, heads, sequence, head size].
_TRAILING = {3: (128, 256), 4: (8, 128, 64)}


@dataclass(frozen=True)
class Spec:
    """One row to measure: the shape is the first tensor's, `features` are the layer's."""

    op: str
    mode: Mode
    dtype: torch.dtype
    shape: tuple[int, ...]
    against: tuple[str, ...]
    features: int | None = None
    choices: tuple[tuple[str, Choice], ...] = ()  # arguments by name; see op_job.sample


def rank_of(op: Op) -> int | None:
    """How many dimensions the op's first tensor must have; None where any number does."""
    rule = op.arguments[0].shape
    return None if not rule or rule.startswith("...") else sum(c.isalpha() for c in rule)


def shape_of(elements: int, op: Op | None = None) -> tuple[int, ...]:
    """Rows of 1024 or 1000, so that ops with a bias get a vector as long; else one row."""
    rank = rank_of(op) if op is not None else None
    if rank in _TRAILING:
        return _filled(elements, _TRAILING[rank])
    for columns in (1024, 1000):
        if elements % columns == 0 and elements > columns:
            return (elements // columns, columns)
    return (1, elements)


def _filled(elements: int, trailing: Sequence[int]) -> tuple[int, ...]:
    """As much of the trailing sizes as divides the elements, from the last on."""
    sizes: list[int] = []
    for wanted in reversed(trailing):
        sizes.insert(0, math.gcd(elements, wanted))
        elements //= sizes[0]
    return (elements, *sizes)


def modes(op: Op, wanted: Sequence[Mode] = MODES) -> list[Mode]:
    """Those of the wanted modes that the op has."""
    return [m for m in wanted if m == "forward" or op.differentiable]


def default_against(device: str) -> tuple[str, ...]:
    """On the CPU max-autotune changes matrix products only, so it is left out there."""
    return ("eager", "compile", "compile-max") if device == "cuda" else ("eager", "compile")
