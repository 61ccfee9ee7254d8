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

from megafuse.graph.affine import Coordinates, mapped
from megafuse.graph.cluster import (
    Cluster,
    Load,
    Refused,
    draws,
    is_input,
    lies_along,
    load,
    reduced,
    turned,
    without_ones,
)
from megafuse.graph.collectives import BEGINS_ONE, begins
from megafuse.graph.coordinates import identity, reshape, same, same_shape
from megafuse.graph.cost import (
    MAX_OPERANDS,
    MAX_PLACES,
    MAX_REGISTERS,
    MAX_VALUES,
    numel,
    registers,
)
from megafuse.graph.ir import Extern, Reduce, Result, Size, Value, axis
from megafuse.graph.merging import merge
from megafuse.graph.order import Order
from megafuse.graph.reads import Read, Reads
from megafuse.graph.rows import Stored, check_store, turn_to_rows
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
        stored: Stored,
        calls: set[Value],
        sums: set[Value],
    ) -> None:
        self.reads, self.stored, self.calls, self.sums = reads, stored, calls, sums
        self.place = {value: k for k, value in enumerate(values)}
        self.of: dict[Value, Cluster] = {}
        self.order = Order()
        self.cuts: dict[Value, str] = {}
        self._readers: dict[Value, list[Cluster]] = {}  # of memory: who read it lately
        self._begun: list[Cluster] = []  # in their order
        self._drawn: Cluster | None = None  # the last that drew random numbers
        self._begun_collective: Cluster | None = None  # the last
        for value in values:
            if isinstance(value, Extern) or value in calls:
                self.add_call(value)
            elif isinstance(value, Result):
                self.of[value] = self.of[value.extern]
            elif value in reads.solid and not is_input(value):
                self.add(value)

    # Steps

    def add_call(self, value: Value) -> None:
        made = self.order.new(self.place[value])
        made.call = True
        for below in self._clusters_below(value.operands):
            self.order.add(below, made)
        self.of[value] = made
        if draws(value):
            if self._drawn is not None:
                self.order.add(self._drawn, made)
            self._drawn = made
        if begins(value.target if isinstance(value, Extern) else None):
            self._begin_collective(made)

    def _begin_collective(self, made: Cluster) -> None:
        for below in self.order.before(made):
            below.sent = True
        if self._begun_collective is not None:
            self.order.add(self._begun_collective, made)
        self._begun_collective = made

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
                alive = [self.order.now(c) for c in reversed(near)]
                ordered += [c for c in dict.fromkeys(alive) if c not in ordered]
        lately = dict.fromkeys(self.order.now(c) for c in reversed(self._begun[-_NEAR:]))
        return ordered + [c for c in lately if c not in ordered]

    def begin(self, value: Value, reads: list[Read]) -> None:
        made = self.order.new(self.place[value])
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
                cluster.loads.add(load(read, at if inner is None else inner, cluster))
                if other is not None:
                    self.order.add(other, cluster)
                if other is None or other.call:
                    self._readers.setdefault(read.value, []).append(cluster)

    # Joining

    def join(self, value: Value, reads: list[Read], cluster: Cluster) -> None:
        """Puts the value into the cluster, or raises Refused."""
        if cluster.sent:
            raise Refused(BEGINS_ONE)
        self.check_size(cluster, reads)
        inside = [r for r in reads if self.of.get(r.value) is cluster]
        if any(read.value in cluster.sums for read in inside):
            raise Refused(READS_A_SUM)
        if not inside and (cluster.sums or value in self.sums):
            check_common({read.value for read in reads}, cluster)
        shape = value.source.shape if isinstance(value, Reduce) else value.shape
        at = self._coordinates(shape, reads, cluster)
        if at is None:
            raise Refused(self._why_not(value, shape, cluster))
        outside = [r for r in reads if self.of.get(r.value) is not cluster]
        self.check_loads([cluster], cluster.loads | {load(r, at, cluster) for r in outside})
        others = {self.of[r.value] for r in reads if r.value in self.of} - {cluster}
        if self.order.reaches(cluster, others):
            raise Refused("would make a cycle")
        if isinstance(value, Reduce) and value in self.sums:
            here = {value: without_ones(at, shape)}
            check_sums(cluster.shape, cluster.rows, sums_of(cluster) | here)
            check_store(value, reduced(value, at), cluster, self.stored)
            self._enter(value, reduced(value, at), reads, cluster, at)
        elif isinstance(value, Reduce):
            at = turn_to_rows(value, at, cluster, self.stored)
            self._enter(value, reduced(value, at), reads, cluster, at)
        else:
            check_store(value, at, cluster, self.stored)
            self._enter(value, at, reads, cluster)

    def check_size(self, cluster: Cluster, reads: list[Read]) -> None:
        sources = cluster.sources | {r.value for r in reads if self.of.get(r.value) is not cluster}
        outputs = self._outputs(cluster) + 1
        if len(sources) + outputs > MAX_OPERANDS - 2:
            raise Refused("too many operands")
        if registers(len(sources) + outputs, bool(cluster.rows)) > MAX_REGISTERS:
            raise Refused("too many registers")
        if len(cluster.coordinates) >= MAX_VALUES:
            raise Refused("too many operations")

    def check_loads(self, together: list[Cluster], loads: set[Load]) -> None:
        """Slices of one tensor are an operand each."""
        if len(loads) + sum(map(self._outputs, together)) + 1 > MAX_PLACES:
            raise Refused("too many operands")

    def _outputs(self, cluster: Cluster) -> int:
        elements = cluster.coordinates.keys() - cluster.sums
        return sum(value in self.stored for value in elements) + len(cluster.sums)

    def _coordinates(
        self, shape: tuple[Size, ...], reads: list[Read], cluster: Cluster
    ) -> Coordinates | None:
        """Where in the domain values of this shape are, so that what they read of the cluster is at
        its own place; or can be computed anew elsewhere."""
        inside = [r for r in reads if self.of.get(r.value) is cluster]
        for at in self._choices(shape, reads, inside, cluster):
            hits = [self.is_hit(read, at, cluster) for read in inside]
            if inside and not any(hits):
                continue
            missed = [r for r, hit in zip(inside, hits, strict=True) if not hit]
            if all(self.is_cheap(read.value, cluster) for read in missed):
                return at
        return None

    def _choices(
        self, shape: tuple[Size, ...], reads: list[Read], inside: list[Read], cluster: Cluster
    ) -> Iterator[Coordinates]:
        if same_shape(shape, cluster.shape):
            yield identity(shape)
        if not inside:
            if same(numel(shape), numel(cluster.shape)):
                flat = reshape(shape, cluster.shape)
                if self._shares_memory(reads, flat, cluster):
                    yield flat
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

    def _shares_memory(self, reads: list[Read], at: Coordinates, cluster: Cluster) -> bool:
        """Whether, there, it reads something that the cluster loads anyway, and its other memory
        along the domain's axes as well. (The spread of an image, flattened, and then the image.)"""
        shared = any(load(read, at, cluster) in cluster.loads for read in reads)
        return shared and all(lies_along(read, at, cluster) for read in reads)

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
