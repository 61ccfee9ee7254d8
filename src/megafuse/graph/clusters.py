"""Who shares a kernel: values in clusters, put there one by one in the graph's order.

A cluster has a domain, the index space of its kernel: a shape, of which the last `rows` dimensions
are one row where something is reduced (0: pointwise). Every member knows its coordinates in the
domain's axes, and is an element of it or, as a reduction, of its rows. A member that reads another
at the very coordinates that this one has shares its register; elsewhere it computes it anew.

A value joins the cluster of something that it reads, or else begins one. Joining must not make a
cycle: no path leads from the cluster to the value through a step outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megafuse.graph.affine import Coordinates, affine, collapsed, contiguous, flat, mapped
from megafuse.graph.cluster import (
    Cluster,
    Refused,
    axes_of,
    draws,
    is_input,
    permute,
    reduced,
    turned,
    without_ones,
)
from megafuse.graph.coordinates import identity, reshape, same, same_shape
from megafuse.graph.cost import MAX_OPERANDS, MAX_REGISTERS, MAX_VALUES, numel, registers
from megafuse.graph.ir import Extern, Reduce, Result, Size, Value, axis
from megafuse.graph.merging import merge
from megafuse.graph.reads import Read, Reads
from megafuse.graph.storage import Strides
from megafuse.graph.sums import READS_A_SUM, check_common, check_sums, sums_of

# Of clusters that a value reads nothing of, so many are tried.
_NEAR = 3


class Clusters:
    """The clusters of one graph. `cuts` has a reason for each value that reads from another kernel
    what it could not join."""

    def __init__(
        self,
        values: list[Value],
        reads: Reads,
        stored: dict[Value, Strides | None],
        calls: set[Value],
        sums: set[Value],
    ) -> None:
        self.reads, self.stored, self.calls, self.sums = reads, stored, calls, sums
        self.place = {value: k for k, value in enumerate(values)}
        self.of: dict[Value, Cluster] = {}
        self.all: dict[int, Cluster] = {}  # by number; a merged one's number is now another's
        self.cuts: dict[Value, str] = {}
        self._readers: dict[Value, list[Cluster]] = {}  # of memory: who read it lately
        self._begun: list[Cluster] = []  # in their order
        self._drawn: Cluster | None = None  # the last that drew random numbers
        for value in values:
            if isinstance(value, Extern) or value in calls:
                self.add_call(value)
            elif isinstance(value, Result):
                self.of[value] = self.of[value.extern]
            elif value in reads.solid and not is_input(value):
                self.add(value)

    def live(self) -> list[Cluster]:
        """Each once."""
        return list(dict.fromkeys(self.all.values()))

    def before(self, cluster: Cluster) -> set[Cluster]:
        """Those it reads from."""
        return {self.all[number] for number in cluster.before} - {cluster}

    # Steps

    def new(self, value: Value) -> Cluster:
        made = Cluster(
            len(self.all), [len(self.all)], first=self.place[value], last=self.place[value]
        )
        self.all[made.number] = made
        return made

    def add_call(self, value: Value) -> None:
        made = self.new(value)
        made.call = True
        self.of[value] = made
        operands = value.operands
        made.before = {c.number for c in self._clusters_below(operands)}
        if draws(value):
            if self._drawn is not None:
                made.before.add(self._drawn.number)
            self._drawn = made

    def _clusters_below(self, values: Iterable[Value]) -> Iterator[Cluster]:
        for value in values:
            if value in self.of:
                yield self.of[value]
            elif not is_input(value):
                yield from self._clusters_below([r.value for r in self.reads.of(value)])

    def add(self, value: Value) -> None:
        reads = self.reads.of(value)
        joined: Cluster | None = None
        for cluster in self._candidates(reads):
            try:
                if joined is None:
                    self.join(value, reads, cluster)
                    joined = cluster
                else:
                    merge(self, joined, cluster, value)
            except Refused as reason:
                self.cuts.setdefault(value, str(reason))
        if joined is None:
            self.begin(value, reads)

    def _candidates(self, reads: list[Read]) -> list[Cluster]:
        """Clusters of what it reads, the latest first; then those that read the same memory, and
        the last ones begun: what has one shape can share a launch at least."""
        found: dict[Cluster, None] = {}
        for read in reads:
            cluster = self.of.get(read.value)
            if cluster is None or cluster.call:
                continue
            found[cluster] = None
        ordered = sorted(found, key=lambda c: -c.last)
        for read in reads:
            if read.value not in self.of or self.of[read.value].call:
                near = self._readers.get(read.value, [])[-_NEAR:]
                alive = [self.all[c.number] for c in reversed(near)]
                ordered += [c for c in dict.fromkeys(alive) if c not in ordered]
        lately = dict.fromkeys(self.all[c.number] for c in reversed(self._begun[-_NEAR:]))
        return ordered + [c for c in lately if c not in ordered]

    def begin(self, value: Value, reads: list[Read]) -> None:
        made = self.new(value)
        self._begun.append(made)
        if isinstance(value, Reduce) and value in self.sums:
            made.shape = value.source.shape
            inner = identity(made.shape)
            self._enter(value, reduced(value, inner), reads, made, inner)
        elif isinstance(value, Reduce):
            source = value.source.shape
            order = [d for d in range(len(source)) if d not in value.dims] + list(value.dims)
            made.shape = tuple(source[d] for d in order)
            made.rows = len(value.dims)
            inner = tuple(axis(order.index(d)) for d in range(len(source)))
            self._enter(value, reduced(value, inner), reads, made, inner)
        else:
            made.shape = value.shape
            self._enter(value, identity(value.shape), reads, made)

    def _enter(
        self,
        value: Value,
        at: Coordinates,
        reads: list[Read],
        cluster: Cluster,
        inner: Coordinates | None = None,
    ) -> None:
        cluster.coordinates[value] = without_ones(at, value.shape)
        if isinstance(value, Reduce):
            assert inner is not None
            cluster.inner[value] = without_ones(inner, value.source.shape)
        if value in self.sums:
            cluster.sums.add(value)
        cluster.last = max(cluster.last, self.place[value])
        self.of[value] = cluster
        for read in reads:
            other = self.of.get(read.value)
            if other is not cluster:
                cluster.sources.add(read.value)
                if other is not None:
                    cluster.before.add(other.number)
                if other is None or other.call:
                    self._readers.setdefault(read.value, []).append(cluster)

    # Joining

    def join(self, value: Value, reads: list[Read], cluster: Cluster) -> None:
        """Puts the value into the cluster, or raises Refused."""
        self.check_size(cluster, reads)
        inside = [r for r in reads if self.of.get(r.value) is cluster]
        if any(read.value in cluster.sums for read in inside):
            raise Refused(READS_A_SUM)
        if not inside and (cluster.sums or value in self.sums):
            check_common({read.value for read in reads}, cluster)
        shape = value.source.shape if isinstance(value, Reduce) else value.shape
        at = self._coordinates(shape, inside, cluster)
        if at is None:
            raise Refused(self._why_not(value, shape, cluster))
        self._check_cycle(cluster, reads)
        if isinstance(value, Reduce) and value in self.sums:
            here = {value: without_ones(at, shape)}
            check_sums(cluster.shape, cluster.rows, sums_of(cluster) | here)
            self._check_store(value, reduced(value, at), cluster)
            self._enter(value, reduced(value, at), reads, cluster, at)
        elif isinstance(value, Reduce):
            at = self._turn_to_rows(value, at, cluster)
            self._enter(value, reduced(value, at), reads, cluster, at)
        else:
            self._check_store(value, at, cluster)
            self._enter(value, at, reads, cluster)

    def check_size(self, cluster: Cluster, reads: list[Read]) -> None:
        sources = cluster.sources | {r.value for r in reads if self.of.get(r.value) is not cluster}
        outputs = sum(value in self.stored for value in cluster.coordinates) + 1
        if len(sources) + outputs > MAX_OPERANDS - 2:
            raise Refused("too many operands")
        if registers(len(sources) + outputs, bool(cluster.rows)) > MAX_REGISTERS:
            raise Refused("too many registers")
        if len(cluster.coordinates) >= MAX_VALUES:
            raise Refused("too many operations")

    def _coordinates(
        self, shape: tuple[Size, ...], inside: list[Read], cluster: Cluster
    ) -> Coordinates | None:
        """Where in the domain values of this shape are, so that what they read of the cluster is at
        its own place; or can be computed anew elsewhere."""
        for at in self._choices(shape, inside, cluster):
            hits = [self.is_hit(read, at, cluster) for read in inside]
            if inside and not any(hits):
                continue
            missed = [r for r, hit in zip(inside, hits, strict=True) if not hit]
            if all(self.is_cheap(read.value, cluster) for read in missed):
                return at
        return None

    def _choices(
        self, shape: tuple[Size, ...], inside: list[Read], cluster: Cluster
    ) -> Iterator[Coordinates]:
        if same_shape(shape, cluster.shape):
            yield identity(shape)
        if not inside:
            return
        for known, place in cluster.spaces():
            if same_shape(shape, known):
                yield place
        for read in inside:
            at = turned(shape, read, cluster)
            if at is not None:
                yield at
        if same(numel(shape), numel(cluster.shape)):
            yield reshape(shape, cluster.shape)
        if cluster.rows and same(numel(shape), numel(cluster.outer)):
            yield reshape(shape, cluster.outer)

    def is_hit(self, read: Read, at: Coordinates, cluster: Cluster) -> bool:
        if not read.exact or read.at is None:
            return False
        place = without_ones(mapped(read.at, at, cluster.shape), read.value.shape)
        return place == cluster.coordinates[read.value]

    def is_cheap(self, value: Value, cluster: Cluster) -> bool:
        """Whether a member may be computed at other places as well."""
        if value in cluster.inner:
            return False
        cone = self.reads.cones[value]
        if cone.reduces or cone.cost > 8:
            return False
        return all(self.of.get(leaf) is not cluster for leaf in cone.leaves)

    def _why_not(self, value: Value, shape: tuple[Size, ...], cluster: Cluster) -> str:
        if isinstance(value, Reduce) and cluster.rows:
            return "another row length"
        if same(numel(shape), numel(cluster.shape)):
            return "reads it at other places than it is made at"
        return "another shape"

    def _turn_to_rows(self, value: Reduce, at: Coordinates, cluster: Cluster) -> Coordinates:
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
        self._check_rows_store(cluster, last)
        order = [d for d in range(len(cluster.shape)) if d not in last] + last
        if cluster.sums:
            if order != list(range(len(order))):
                raise Refused("sums over other dimensions than all but the row")
            check_sums(cluster.shape, len(last), sums_of(cluster))
        cluster.rows = len(last)
        if not last:
            # Rows of one element: an axis of their own.
            cluster.shape, cluster.rows = (*cluster.shape, 1), 1
        elif order != list(range(len(order))):
            anew = permute(cluster, order)
            return tuple(i.xreplace(anew) for i in at)
        return at

    def _check_rows_store(self, cluster: Cluster, last: list[int]) -> None:
        """What the cluster must write so far can be written along the row as one dimension."""
        sizes = [cluster.shape[d] for d in last]
        for value, at in cluster.coordinates.items():
            strides = self.stored.get(value)
            found = None if strides is None else affine(flat(at, strides), cluster.axes)
            if found and collapsed([found[1][d] for d in last], sizes, len(last)) is None:
                raise Refused("its memory is laid out otherwise")

    def _check_store(self, value: Value, at: Coordinates, cluster: Cluster) -> None:
        """What is written must lie along the domain's axes."""
        strides = self.stored.get(value) or contiguous(value.shape)
        found = affine(flat(at, strides), cluster.axes)
        if found is None or collapsed(found[1], cluster.shape, cluster.rows) is None:
            raise Refused("its memory is laid out otherwise")

    # Cycles

    def _check_cycle(self, cluster: Cluster, reads: list[Read]) -> None:
        others = {self.of[r.value] for r in reads if r.value in self.of} - {cluster}
        if self.reached(cluster, others):
            raise Refused("would make a cycle")

    def reached(self, start: Cluster, ends: Iterable[Cluster]) -> bool:
        """Whether one of `ends` comes after `start`. Only what is younger than start can."""
        stack, seen = list(ends), set(ends)
        while stack:
            cluster = stack.pop()
            if cluster is start:
                return True
            if cluster.last < start.first:
                continue
            below = self.before(cluster) - seen
            seen |= below
            stack += below
        return False
