"""A kernel in the making: a domain, and where in it its members are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from megafuse.graph.affine import Coordinates, affine, collapsed, contiguous, flat, mapped
from megafuse.graph.coordinates import same
from megafuse.graph.cost import numel
from megafuse.graph.ir import Input, Number, Reduce, Size, Value, axis
from megafuse.graph.reads import Read

Load = tuple[Value, Coordinates | None]  # a value, and where in the domain's axes; None: computed


@dataclass(eq=False)
class Cluster:
    """A kernel in the making. Of a single Extern: a call of the library (`call`)."""

    number: int
    shape: tuple[Size, ...] = ()
    rows: int = 0
    call: bool = False
    sent: bool = False  # a collective begins with what it makes: nothing more joins it
    coordinates: dict[Value, Coordinates] = field(default_factory=dict)
    inner: dict[Reduce, Coordinates] = field(default_factory=dict)  # of a reduction's source
    sums: set[Value] = field(default_factory=set)  # members that nobody in it can read
    sources: set[Value] = field(default_factory=set)  # solid values read from outside
    loads: set[Load] = field(default_factory=set)  # the same, once for each place
    first: int = 0  # places in the graph's order
    last: int = 0
    # Other clusters, by number (order.py).
    before: set[int] = field(default_factory=set)  # it reads from these
    after: set[int] = field(default_factory=set)  # these read from it
    bits: int = 0  # its number, and those of clusters merged into it: bit k is number k
    below: int = 0  # all that it comes after, as such bits

    @property
    def outer(self) -> tuple[Size, ...]:
        return self.shape[: len(self.shape) - self.rows]

    @property
    def axes(self) -> list[sympy.Symbol]:
        return [axis(dim) for dim in range(len(self.shape))]

    def writes(self, value: Value, strides: Sequence[Size]) -> bool:
        """Whether a member can be written to memory that lies so: along the domain's axes, and
        along its row as one."""
        found = affine(flat(self.coordinates[value], strides), self.axes)
        if found is None:
            return False
        steps = [0 if n == 1 else s for s, n in zip(found[1], self.shape, strict=True)]
        return collapsed(steps, self.shape, self.rows) is not None

    def dense(self, value: Value) -> tuple[Size, ...]:
        """Strides of a member whose dimensions lie in the order of the domain's axes."""
        steps = contiguous([n if i in self._used(value) else 1 for i, n in self._sizes()])
        known = dict(zip(self.axes, steps, strict=True))
        return tuple(known.get(place, 0) for place in self.coordinates[value])

    def _sizes(self) -> list[tuple[sympy.Symbol, Size]]:
        return list(zip(self.axes, self.shape, strict=True))

    def _used(self, value: Value) -> set[sympy.Symbol]:
        return {symbol for place in self.coordinates[value] for symbol in place.free_symbols}

    def spaces(self) -> Iterator[tuple[tuple[Size, ...], Coordinates]]:
        """Shapes that members have, or what they reduce, with coordinates: each once."""
        members = [(v.shape, at) for v, at in self.coordinates.items() if v not in self.sums]
        members += [(value.source.shape, at) for value, at in self.inner.items()]
        found: list[tuple[tuple[Size, ...], Coordinates]] = []
        for space in members:
            if space not in found:
                found.append(space)
                yield space


class Refused(Exception):
    """Why a value does not join a cluster: what explain() says of the cut."""


def is_input(value: Value) -> bool:
    """What comes from outside, and before every step."""
    return isinstance(value, (Input, Number))


def draws(value: Value) -> bool:
    """Whether it takes random numbers, whose order must stay."""
    tags = getattr(getattr(value, "target", None), "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def without_ones(at: Coordinates, shape: tuple[Size, ...]) -> Coordinates:
    """The same place, with 0 for every coordinate that can be nothing else."""
    zero = sympy.Integer(0)
    return tuple(zero if size == 1 else sympy.sympify(i) for i, size in zip(at, shape, strict=True))


def reduced(value: Reduce, at: Coordinates) -> Coordinates:
    """Where a reduction is, for a source that is at `at`."""
    zero = sympy.Integer(0)
    left = tuple(
        zero if dim in value.dims else place
        for dim, place in enumerate(at)
        if value.keep or dim not in value.dims
    )
    return (*left, zero) if value.parts else left


def turned(shape: tuple[Size, ...], read: Read, cluster: Cluster) -> Coordinates | None:
    """The coordinates that make this read a hit, where it only orders axes anew."""
    if read.at is None or not same(numel(shape), numel(read.value.shape)):
        return None
    places = dict(zip(read.at, cluster.coordinates[read.value], strict=True))
    found = [
        sympy.Integer(0) if size == 1 else places.get(axis(dim)) for dim, size in enumerate(shape)
    ]
    return None if None in found else tuple(found)


def lies_along(read: Read, at: Coordinates, cluster: Cluster) -> bool:
    """Whether what is read from memory, by a member that is at `at`, lies along the domain's axes,
    and along its row as one."""
    if read.at is None:
        return False
    value = read.value
    strides = value.strides if isinstance(value, Input) else contiguous(value.shape)
    found = affine(flat(mapped(read.at, at, cluster.shape), strides), cluster.axes)
    return found is not None and collapsed(found[1], cluster.shape, cluster.rows) is not None


def axes_of(place: sympy.Expr, shape: Sequence[Size]) -> list[sympy.Symbol] | None:
    """The domain's axes that a coordinate goes along, in their order: one, or several beside each
    other as one (H·W of an image); None where it is anything else."""
    sizes = {axis(dim): size for dim, size in enumerate(shape) if size != 1}
    axes = list(sizes)
    used = [i for i in axes if i in place.free_symbols]
    if not used or axes[axes.index(used[0]) : axes.index(used[-1]) + 1] != used:
        return None
    dense, step = sympy.Integer(0), sympy.Integer(1)
    for i in reversed(used):
        dense, step = dense + i * step, step * sizes[i]
    return used if same(place, dense) else None


def load(read: Read, at: Coordinates, cluster: Cluster) -> Load:
    """What a member that is at `at`, or whose source is, takes from memory."""
    if read.at is None:
        return read.value, None
    return read.value, without_ones(mapped(read.at, at, cluster.shape), read.value.shape)


def renamed(loads: set[Load], anew: Mapping[sympy.Symbol, sympy.Expr]) -> set[Load]:
    """The same, with other names for the axes."""
    return {(v, at and tuple(i.xreplace(anew) for i in at)) for v, at in loads}


def permute(cluster: Cluster, order: list[int]) -> dict[sympy.Symbol, sympy.Symbol]:
    """The domain's axes in another order. Returns what each is called now."""
    cluster.shape = tuple(cluster.shape[d] for d in order)
    anew = {axis(old): axis(new) for new, old in enumerate(order)}
    for value, at in cluster.coordinates.items():
        cluster.coordinates[value] = tuple(i.xreplace(anew) for i in at)
    for reduction, at in cluster.inner.items():
        cluster.inner[reduction] = tuple(i.xreplace(anew) for i in at)
    cluster.loads = renamed(cluster.loads, anew)
    return anew
