"""Operations of a call, run again by themselves: what a change is tried on.

While a call is watched, each operation is noted with its arguments; a tensor is noted as the place
it takes (memory, content, shape and strides), not kept. What was there before the call is, since it
is there anyway. Everything else that a part of the call needs from outside is drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from megafuse.bench.arguments import copied
from megafuse.diagnose.record import Touched

# What saved means and deviations are drawn from, too: with larger ones the gradients of 24
# LayerNorms in a row overflow, and whether that is infinity or NaN is chance.
_SMALL = 0.25


class Place(NamedTuple):
    """A tensor's, within a call."""

    value: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str

    @staticmethod
    def of(t: Touched) -> Place:
        return Place(t.value, t.offset, t.shape, t.strides, t.dtype, t.device)


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor among an operation's arguments."""

    place: Place


@dataclass
class Step:
    """One operation as it was called."""

    func: Any
    args: Any
    kwargs: Any
    outs: tuple[Place, ...]
    view: bool

    @property
    def needs(self) -> list[Place]:
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf.place for leaf in leaves if isinstance(leaf, Slot)]


@dataclass
class Tape:
    """All steps of a watched call, by the number of their operation."""

    steps: list[Step | None] = field(default_factory=list)
    there: dict[Place, Tensor] = field(default_factory=dict)  # before the call
    natives: dict[int, Step] = field(default_factory=dict)  # extensions, by their operation's id


class Part(NamedTuple):
    """Some steps as a function, with tensors to call it on."""

    function: Callable[..., tuple[Tensor, ...]]
    inputs: list[Tensor]


def part(tape: Tape, wanted: Sequence[int], results: set[int]) -> Part | None:
    """The steps of these numbers, with the views between them; returns what `results` (values)
    names of their outputs. None where that cannot be run by itself."""
    chosen = _with_views(tape, wanted)
    if chosen is None:
        return None
    made: set[Place] = set()
    needed: list[Place] = []
    for step in chosen:
        needed += [p for p in step.needs if p not in made and p not in needed]
        made |= set(step.outs)
    outs = [p for step in chosen if not step.view for p in step.outs if p.value in results]
    tensors = [_tensor(tape, place) for place in needed]
    if not outs or any(t is None for t in tensors):
        return None

    def function(*given: Tensor) -> tuple[Tensor, ...]:
        held: dict[Place, Any] = dict(zip(needed, given, strict=True))
        for step in chosen:
            args, kwargs = pytree.tree_map_only(
                Slot, lambda slot: held[slot.place], (step.args, step.kwargs)
            )
            out = step.func(*args, **kwargs)
            results_of = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
            held.update(zip(step.outs, results_of, strict=False))
        return tuple(held[p] for p in outs)

    return Part(function, [t for t in tensors if t is not None])


def _with_views(tape: Tape, wanted: Sequence[int]) -> list[Step] | None:
    """The steps, and those views that lead from one to another."""
    numbers = set(wanted)
    if not numbers:
        return None
    chosen: list[Step] = []
    made: set[Place] = set()
    for number in range(min(numbers), max(numbers) + 1):
        step = tape.steps[number]
        if step is None:
            if number in numbers:
                return None
            continue
        if number in numbers or (step.view and any(p in made for p in step.needs)):
            chosen.append(step)
            made |= set(step.outs)
    return chosen


def _tensor(tape: Tape, place: Place) -> Tensor | None:
    """What was there before the call, else something drawn at random with its strides."""
    found = tape.there.get(place)
    if found is not None:
        copy: Tensor = copied(found)  # a user's kernel may write to it
        return copy
    dtype: torch.dtype = getattr(torch, place.dtype)
    try:
        made = torch.empty_strided(place.shape, place.strides, dtype=dtype, device=place.device)
        with torch.random.fork_rng():
            if dtype.is_floating_point:
                return made.copy_(_SMALL * torch.randn(place.shape, device=place.device))
            return made.copy_(torch.randint(0, 2, place.shape, device=place.device))
    except RuntimeError:  # elements that share memory, or no memory
        return None
