"""Two clusters of one domain as one, where a value reads both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from megafuse.graph.affine import mapped
from megafuse.graph.cluster import Cluster, Load, Refused, renamed, without_ones
from megafuse.graph.collectives import BEGINS_ONE
from megafuse.graph.coordinates import same, same_shape
from megafuse.graph.cost import numel
from megafuse.graph.ir import Value
from megafuse.graph.reads import Read
from megafuse.graph.rows import check_store
from megafuse.graph.sums import READS_A_SUM, check_sums, sums_of

if TYPE_CHECKING:
    from megafuse.graph.clusters import Clusters

Axes = dict[sympy.Symbol, sympy.Symbol]


def merge(clusters: Clusters, one: Cluster, other: Cluster, value: Value) -> None:
    """Puts all of `other` into `one`, which has `value`; or raises Refused."""
    if one is other:
        return
    if one.sent or other.sent:
        raise Refused(BEGINS_ONE)
    axes = _axes(clusters, one, other, value)
    order = clusters.order
    if order.passes_outside(one, other) or order.passes_outside(other, one):
        raise Refused("would make a cycle")
    clusters.check_size(one, [Read(v, None) for v in other.sources])
    if other.rows and not one.rows:
        whole = _moved(one, {new: old for old, new in axes.items()}, other)
        both = (other, whole)
    else:
        whole = _moved(other, axes, one)
        both = (one, whole)
    clusters.check_loads([one, other], _loads(both))
    _check_rows(one, other, axes)
    _check_reads(clusters, both)
    for each in both:
        for member in each.coordinates.keys() & clusters.stored.keys():
            if clusters.stored[member] is not None:
                check_store(member, each.coordinates[member], each, clusters.stored)
    check_sums(both[1].shape, both[1].rows, sums_of(both[0]) | sums_of(both[1]))
    _put_together(clusters, one, other, both)


def _axes(clusters: Clusters, one: Cluster, other: Cluster, value: Value) -> Axes:
    """Which axis of `one` each of the other's is."""
    if not same(numel(one.shape), numel(other.shape)):
        raise Refused("another shape")
    for read in clusters.reads.of(value):
        if clusters.of.get(read.value) is not other or read.at is None or not read.exact:
            continue
        at = one.inner.get(value, one.coordinates[value])  # type: ignore[call-overload]
        here = without_ones(mapped(read.at, at, one.shape), read.value.shape)
        there = other.coordinates[read.value]
        found = {
            old: new for old, new in zip(there, here, strict=True) if isinstance(old, sympy.Symbol)
        }
        wide = [i for i, n in zip(other.axes, other.shape, strict=True) if n != 1]
        whole = all(isinstance(i, sympy.Symbol) and i in one.axes for i in found.values())
        if whole and len(set(found.values())) == len(wide) and set(wide) == set(found):
            return found
        if same_shape(one.shape, other.shape) and here == there:
            return dict(zip(other.axes, one.axes, strict=True))
    raise Refused("reads it at other places than it is made at")


def _moved(cluster: Cluster, axes: Axes, into: Cluster) -> Cluster:
    """A copy that is written in the other's axes."""
    zero = {i: sympy.Integer(0) for i in cluster.axes if i not in axes}
    anew = {**zero, **axes}

    def moved(at: tuple[sympy.Expr, ...]) -> tuple[sympy.Expr, ...]:
        return tuple(i.xreplace(anew) for i in at)

    made = Cluster(cluster.number, shape=into.shape, rows=into.rows)
    made.coordinates = {v: moved(at) for v, at in cluster.coordinates.items()}
    made.inner = {v: moved(at) for v, at in cluster.inner.items()}
    made.sums = cluster.sums
    made.loads = renamed(cluster.loads, anew)
    return made


def _loads(both: tuple[Cluster, Cluster]) -> set[Load]:
    """What they still take from memory as one."""
    inside = both[0].coordinates.keys() | both[1].coordinates.keys()
    return {(value, at) for each in both for value, at in each.loads if value not in inside}


def _check_rows(one: Cluster, other: Cluster, axes: Axes) -> None:
    """If both have rows, these are the same, in the same order."""

    def row(cluster: Cluster) -> list[sympy.Symbol]:
        pairs = zip(cluster.axes, cluster.shape, strict=True)
        return [i for i, n in list(pairs)[len(cluster.outer) :] if n != 1]

    if one.rows and other.rows and [axes[i] for i in row(other)] != row(one):
        raise Refused("another row length")


def _check_reads(clusters: Clusters, both: tuple[Cluster, Cluster]) -> None:
    """What they read of each other must be at its place, or cheap to compute elsewhere."""
    for mine, theirs in (both, both[::-1]):
        for value, place in mine.coordinates.items():
            at = mine.inner.get(value, place)  # type: ignore[call-overload]
            for read in clusters.reads.of(value):
                if read.value in theirs.sums:
                    raise Refused(READS_A_SUM)
                if read.value not in theirs.coordinates or clusters.is_hit(read, at, theirs):
                    continue
                if not clusters.is_cheap(read.value, clusters.of[read.value]):
                    raise Refused("reads it at other places than it is made at")


def _put_together(
    clusters: Clusters, one: Cluster, other: Cluster, both: tuple[Cluster, Cluster]
) -> None:
    place = clusters.place
    coordinates = {**both[0].coordinates, **both[1].coordinates}
    one.coordinates = dict(sorted(coordinates.items(), key=lambda item: place[item[0]]))
    one.inner = {**both[0].inner, **both[1].inner}
    one.shape, one.rows = both[1].shape, both[1].rows
    one.sums = both[0].sums | both[1].sums
    one.loads = _loads(both)
    one.sources = {v for v in one.sources | other.sources if v not in coordinates}
    for value in other.coordinates:
        clusters.of[value] = one
    clusters.order.merge(one, other)
