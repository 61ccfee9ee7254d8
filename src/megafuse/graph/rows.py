"""A cluster with rows: reduced axes come last, and what it writes can be written along them."""

from __future__ import annotations

from megafuse.graph.affine import Coordinates, affine, collapsed, contiguous, flat
from megafuse.graph.cluster import Cluster, Refused, axes_of, permute
from megafuse.graph.ir import Reduce, Value
from megafuse.graph.storage import Strides
from megafuse.graph.sums import check_sums, sums_of

Stored = dict[Value, Strides | None]


def turn_to_rows(value: Reduce, at: Coordinates, cluster: Cluster, stored: Stored) -> Coordinates:
    """The domain of a first reduction gets its axes last; a later one must reduce the same.
    Returns the coordinates of the reduction's source from then on."""
    reduced = [d for d in value.dims if value.source.shape[d] != 1]
    found = [axes_of(at[d], cluster.shape) for d in reduced]
    if None in found:
        raise Refused("reduces a part of the row")
    axes = [i for several in found for i in several or ()]
    if cluster.rows:
        last = [i for i, n in zip(cluster.axes, cluster.shape, strict=True) if n != 1]
        last = [i for i in last if cluster.axes.index(i) >= len(cluster.outer)]
        if axes != last:
            raise Refused("another row length")
        return at
    kept = [d for d in range(len(at)) if d not in reduced]
    if any(at[d].free_symbols & set(axes) for d in kept):
        raise Refused("reduces a part of the row")
    last = [cluster.axes.index(i) for i in axes]
    _check_rows_store(cluster, last, stored)
    order = [d for d in range(len(cluster.shape)) if d not in last] + last
    if cluster.sums:
        if order != list(range(len(order))):
            raise Refused("sums over other dimensions than all but the row")
        shape = cluster.shape if last else (*cluster.shape, 1)
        check_sums(shape, max(len(last), 1), sums_of(cluster))
    cluster.rows = len(last)
    if not last:
        # Rows of one element: an axis of their own.
        cluster.shape, cluster.rows = (*cluster.shape, 1), 1
    elif order != list(range(len(order))):
        anew = permute(cluster, order)
        return tuple(i.xreplace(anew) for i in at)
    return at


def _check_rows_store(cluster: Cluster, last: list[int], stored: Stored) -> None:
    """What the cluster must write so far can be written along the row as one dimension."""
    sizes = [cluster.shape[d] for d in last]
    for value, at in cluster.coordinates.items():
        strides = stored.get(value)
        found = None if strides is None else affine(flat(at, strides), cluster.axes)
        if found and collapsed([found[1][d] for d in last], sizes, len(last)) is None:
            raise Refused("its memory is laid out otherwise")


def check_store(value: Value, at: Coordinates, cluster: Cluster, stored: Stored) -> None:
    """What is written must lie along the domain's axes."""
    strides = stored.get(value) or contiguous(value.shape)
    found = affine(flat(at, strides), cluster.axes)
    if found is None or collapsed(found[1], cluster.shape, cluster.rows) is None:
        raise Refused("its memory is laid out otherwise")
