"""Which cluster runs before which.

Clusters that read each other are a graph without cycles, and must stay one: a value may join a
cluster, and two may become one, only where no path leads out of it and back. A path counts steps
whole: who reads the first value of a kernel waits for its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megafuse.graph.cluster import Cluster


class Order:
    """All clusters of one graph. Each has those that it comes after, by whatever way, as the bits
    of one number: whether a path leads from here to there is one `and`."""

    def __init__(self) -> None:
        self._all: dict[int, Cluster] = {}  # by number; a merged one's number is now another's

    def new(self, place: int) -> Cluster:
        number = len(self._all)
        made = self._all[number] = Cluster(number, first=place, last=place, bits=1 << number)
        return made

    def live(self) -> list[Cluster]:
        """Each once."""
        return list(dict.fromkeys(self._all.values()))

    def now(self, cluster: Cluster) -> Cluster:
        """Itself, or what it was merged into."""
        return self._all[cluster.number]

    def before(self, cluster: Cluster) -> set[Cluster]:
        """Those it reads from."""
        return {self._all[number] for number in cluster.before} - {cluster}

    def after(self, cluster: Cluster) -> set[Cluster]:
        """Those that read from it."""
        return {self._all[number] for number in cluster.after} - {cluster}

    def reaches(self, start: Cluster, ends: Iterable[Cluster]) -> bool:
        """Whether one of `ends` is `start`, or comes after it."""
        return any((end.bits | end.below) & start.bits for end in ends)

    def passes_outside(self, start: Cluster, end: Cluster) -> bool:
        """Whether a path leads from one to the other through a third."""
        return self.reaches(start, self.before(end) - {start})

    def add(self, earlier: Cluster, later: Cluster) -> None:
        """The later one reads from the earlier."""
        if earlier is later:
            return
        later.before.add(earlier.number)
        earlier.after.add(later.number)
        self._comes_after(later, earlier.below | earlier.bits)

    def merge(self, one: Cluster, other: Cluster) -> None:
        """`other` is a part of `one` from now on."""
        one.bits |= other.bits
        one.below = (one.below | other.below) & ~one.bits
        one.before |= other.before
        one.after |= other.after
        one.first, one.last = min(one.first, other.first), max(one.last, other.last)
        for number in _numbers(other.bits):
            self._all[number] = one
        for later in self.after(one):
            self._comes_after(later, one.below | one.bits)

    def _comes_after(self, cluster: Cluster, those: int) -> None:
        """The cluster, and all that come after it."""
        stack = [cluster]
        while stack:
            later = stack.pop()
            more = those & ~(later.below | later.bits)
            if more:
                later.below |= more
                stack += self.after(later)


def _numbers(bits: int) -> Iterator[int]:
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1
