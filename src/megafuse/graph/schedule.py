"""The order of a graph's steps: each after those it reads from, else as the graph has them.

What waits for a collective comes as late as its readers allow, just before the first of them.
"""

from __future__ import annotations

import heapq
import math

from megafuse.graph.cluster import Cluster
from megafuse.graph.clusters import Clusters
from megafuse.graph.collectives import waits
from megafuse.graph.ir import Extern


def ordered(clusters: Clusters) -> list[Cluster]:
    """All of them."""
    waiting = {c for v, c in clusters.of.items() if isinstance(v, Extern) and waits(v.target)}
    live = {c.number: c for c in clusters.order.live()}
    turns = {n: _when_read(c, clusters) if c in waiting else c.first for n, c in live.items()}
    missing: dict[int, int] = {}
    after: dict[int, list[int]] = {}
    for number, cluster in live.items():
        below = clusters.order.before(cluster)
        missing[number] = len(below)
        for earlier in below:
            after.setdefault(earlier.number, []).append(number)
    ready = [(turns[n], n) for n, count in missing.items() if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(live[number])
        for later in after.get(number, ()):
            missing[later] -= 1
            if missing[later] == 0:
                heapq.heappush(ready, (turns[later], later))
    assert len(found) == len(live), "the clusters make a cycle"
    return found


def _when_read(cluster: Cluster, clusters: Clusters) -> float:
    """Just before the first that reads it."""
    readers = clusters.order.after(cluster)
    return min((_reads_at(reader, cluster, clusters) for reader in readers), default=math.inf) - 0.5


def _reads_at(reader: Cluster, cluster: Cluster, clusters: Clusters) -> int:
    """The place of the first in `reader` that reads from the cluster."""
    if reader.call:
        return reader.first
    found = [
        clusters.place[value]
        for value in reader.coordinates
        if any(clusters.of.get(read.value) is cluster for read in clusters.reads.of(value))
    ]
    return min(found, default=reader.last)
