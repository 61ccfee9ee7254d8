"""Sums that a kernel writes beside its other results, without its terms: which it can have.

A sum over rows (or over everything) is complete when the kernel is, so nobody in the kernel reads
it. Each thread or block adds up its own share, and a last small step adds up these shares in a
fixed order (runtime/host/core/sums.h); or they are left in so many parts, for a kernel that has
them as a row.

    row-wise        column by column over all rows: the gradient of a norm's weight; or over those
                    of each segment, where outer dimensions are left: the gradient of a sample's
                    shift. All sums of a kernel that leave any leave the same ones.
    element-wise    over any dimensions, if those that are left lie beside each other in memory, or
                    on both sides of what is summed: stages.py leaves others to the library
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from megafuse.graph.affine import Coordinates
from megafuse.graph.cluster import Cluster, Refused, axes_of
from megafuse.graph.ir import Reduce, Size, Value, axis

READS_A_SUM = "a sum is known when its kernel is done"


def sums_of(cluster: Cluster) -> dict[Reduce, Coordinates]:
    """The cluster's sums, and where the terms of each are."""
    return {value: at for value, at in cluster.inner.items() if value in cluster.sums}


def check_sums(shape: Sequence[Size], rows: int, sums: Mapping[Reduce, Coordinates]) -> None:
    """Raises Refused where one kernel over this domain cannot have all of these sums."""
    if rows and any(value.parts for value in sums):
        raise Refused("sums over other dimensions than rows beside each other")
    if len({value.dtype for value in sums if value.parts}) > 1:
        raise Refused("sums of other numbers")
    wide = [axis(d) for d, size in enumerate(shape) if size != 1]
    row = [i for i in wide if i in {axis(d) for d in range(len(shape) - rows, len(shape))}]
    kinds = {tuple(_kept(value, at, shape)) for value, at in sums.items()}
    if not rows:
        if len(kinds) > 1:
            raise Refused("sums over other dimensions")
        return
    outer = wide[: len(wide) - len(row)]
    segments = set()
    for kept in kinds:
        left = list(kept[: len(kept) - len(row)])
        if [*left, *row] != list(kept) or left != outer[: len(left)]:
            raise Refused("sums over other dimensions than rows beside each other")
        segments.add(len(left))
    if len(segments - {0}) > 1:
        raise Refused("sums over other dimensions")


def _kept(value: Reduce, at: Coordinates, shape: Sequence[Size]) -> list[sympy.Symbol]:
    """The domain's axes that are left, in the sum's order; all others must be summed."""
    kept: list[sympy.Symbol] = []
    summed: list[sympy.Symbol] = []
    for d, size in enumerate(value.source.shape):
        if size == 1:
            continue
        axes = axes_of(at[d], shape)
        if axes is None:
            raise Refused("sums a part of what the kernel goes through")
        (summed if d in value.dims else kept).extend(axes)
    if {*kept, *summed} != {axis(d) for d, size in enumerate(shape) if size != 1}:
        raise Refused("sums a part of what the kernel goes through")
    return kept


def check_common(sources: set[Value], cluster: Cluster) -> None:
    """A sum shares a kernel with what reads the same, not with anything of its shape: a kernel that
    sums is cut otherwise than one that does not."""
    if not sources & cluster.sources:
        raise Refused("reads nothing of it")
