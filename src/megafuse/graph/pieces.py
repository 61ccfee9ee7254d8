"""Kernels that go through a dimension in pieces: where a cat, a pad or a slice cuts it evenly.

In x·cos + cat(−x2, x1)·sin every element asks which half it is in, and loads under a mask. In
pieces, the kernel goes through one half and computes, at each place, the elements of both: every
load is a plain one, and each element is read once. x[..., ::2] and x[..., 1::2] are pieces as well,
whose elements are dealt out in turn.

On a GPU a thread's neighbours would then write every second element. So there such pieces must be
pairs, side by side in memory, which a kernel moves as one vector (kernels/pointwise.h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from megafuse.graph.affine import Coordinates, affine, same_strides
from megafuse.graph.coordinates import same
from megafuse.graph.cost import Device
from megafuse.graph.ir import Size, axis
from megafuse.graph.plan import Operand

_MOST = 4  # pieces: each has operands of its own


@dataclass(frozen=True)
class Test:
    """A coordinate that is not proven to be in 0 … size − 1; no size: one that has divisions."""

    place: sympy.Expr
    size: Size | None = None


@dataclass(frozen=True)
class Pieces:
    """The index space of one piece, and where each piece has the whole space's axes."""

    shape: tuple[Size, ...]
    axes: list[Coordinates]
    in_turn: bool = False  # whether elements next to each other are in different pieces


def pieces(tests: Sequence[Test], shape: tuple[Size, ...], device: Device) -> Pieces | None:
    """Pieces in which these tests may be decided; None if no dimension is cut evenly."""
    cuts = {cut for test in tests for cut in _cuts(test, shape)}
    found = Pieces(shape, [tuple(axis(d) for d in range(len(shape)))])
    for dim in sorted({cut.dim for cut in cuts}):
        here = [cut for cut in cuts if cut.dim == dim]
        if len({cut.in_turn for cut in here}) > 1:
            return None
        count = math.lcm(*(cut.count for cut in here))
        if count * len(found.axes) > _MOST or not _divides(count, shape[dim]):
            return None
        in_turn = here[0].in_turn or shape[dim] == count
        if device == "cuda" and in_turn and count != 2:
            return None
        found = replace(
            _cut(found, Cut(dim, here[0].in_turn, count)), in_turn=found.in_turn or in_turn
        )
    return found if cuts else None


def are_pairs(operands: Sequence[Operand], shape: Sequence[Size]) -> bool:
    """Whether each of these has its partner among them: what it writes lies beside what that does,
    so that both fill their memory together."""
    return all(any(_are_pair(one, other, shape) for other in operands) for one in operands)


def _are_pair(one: Operand, other: Operand, shape: Sequence[Size]) -> bool:
    steps = [step for step, size in zip(one.strides, shape, strict=True) if size != 1]
    return (
        one.buffer is other.buffer
        and 2 in steps
        and same_strides(one.strides, other.strides, shape)
        and any(same(one.offset - other.offset, apart) for apart in (1, -1))
    )


def _divides(count: int, size: Size) -> bool:
    return bool(sympy.sympify(size).as_coeff_Mul()[0] % count == 0)


def _cut(whole: Pieces, cut: Cut) -> Pieces:
    part = sympy.sympify(whole.shape[cut.dim]) / cut.count
    size: Size = int(part) if part.is_Integer else part
    shape = (*whole.shape[: cut.dim], size, *whole.shape[cut.dim + 1 :])
    i = axis(cut.dim)
    moved = [i * cut.count + k if cut.in_turn else i + k * part for k in range(cut.count)]
    return Pieces(
        shape, [tuple(e.xreplace({i: at}) for e in axes) for axes in whole.axes for at in moved]
    )


@dataclass(frozen=True)
class Cut:
    """A dimension in `count` pieces: one after the other, or its elements dealt out in turn."""

    dim: int
    in_turn: bool
    count: int


def _cuts(test: Test, shape: Sequence[Size]) -> list[Cut]:
    axes = [axis(d) for d in range(len(shape))]
    divisions = test.place.atoms(FloorDiv, Mod, PythonMod)
    divisions = {d for d in divisions if d.free_symbols & set(axes)}
    if divisions:
        return [cut for division in divisions for cut in _of_division(division, axes)]
    return _of_bounds(test, axes, shape)


def _of_division(division: sympy.Expr, axes: list[sympy.Symbol]) -> list[Cut]:
    """Of i // 2 and i % 2: pairs."""
    top, by = division.args
    found = affine(top, axes)
    if found is None or not by.is_Integer:
        return []
    dims = [dim for dim, step in enumerate(found[1]) if sympy.sympify(step) % by != 0]
    return [Cut(dims[0], True, int(by))] if len(dims) == 1 else []


def _of_bounds(test: Test, axes: list[sympy.Symbol], shape: Sequence[Size]) -> list[Cut]:
    """Where i + start begins or ends to be inside: a fraction of the dimension."""
    found = affine(test.place, axes)
    if found is None or test.size is None:
        return []
    dims = [dim for dim, step in enumerate(found[1]) if step != 0]
    if len(dims) != 1 or found[1][dims[0]] != 1:
        return []
    cuts: list[Cut] = []
    for bound in (-found[0], test.size - found[0]):
        part = sympy.cancel(sympy.sympify(bound) / shape[dims[0]])
        if part.is_Rational and 0 < part < 1:
            cuts.append(Cut(dims[0], False, int(part.q)))
    return cuts
