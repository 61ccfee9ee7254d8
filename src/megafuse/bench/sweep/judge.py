"""The rule: fused is behind where the interval of the ratio lies below 1 less the margin.

The ratio is the other's time over fused's, round by round: samples of one round were taken next to
each other. Its median's confidence interval goes from one order statistic to another, so nothing is
assumed of the noise's distribution: with n rounds the true median lies between the k-th smallest
and the k-th largest with probability 1 − 2·P(Binomial(n, ½) < k).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megafuse.bench.timing import Timing

CONFIDENCE = 0.99
MARGIN = 0.03  # what two runs of the very same code differ by, from memory's placement and clocks
# Seconds below which two times of one call are the same, by clock: the resolution of two events,
# and what a loop of calls varies by.
LEAST = {"cold": 0.25e-6, "wall": 0.1e-6}
FEWEST = 8  # rounds for an interval of 99 %: 1 − 2·2⁻⁸


@dataclass(frozen=True)
class Interval:
    """The median of a ratio and its confidence interval."""

    median: float
    low: float
    high: float


def ratio(theirs: Timing, ours: Timing, confidence: float = CONFIDENCE) -> Interval:
    """theirs / ours: below 1 where ours takes longer."""
    return interval([a / b for a, b in zip(theirs.samples, ours.samples, strict=True)], confidence)


def interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median and its interval; from the least to the largest where samples are too few."""
    ordered = sorted(samples)
    n = len(ordered)
    k = _rank(n, 1 - confidence)
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k])


def _rank(n: int, outside: float) -> int:
    """The largest k ≥ 1 with 2·P(Binomial(n, ½) < k) ≤ outside."""
    left, k = 0.0, 0
    while k < n // 2:
        left += math.comb(n, k) / 2**n
        if 2 * left > outside:
            break
        k += 1
    return max(k, 1)


def behind(theirs: Timing, ours: Timing, clock: str) -> bool:
    """Whether ours is slower by more than the noise."""
    if ours.n < FEWEST:
        return False
    late = ours.median - theirs.median
    return ratio(theirs, ours).high < 1 - MARGIN and late > LEAST[clock]


def best(timings: Mapping[str, Timing], subject: str = "fused") -> str:
    """The fastest of the others."""
    return min((n for n in timings if n != subject), key=lambda n: timings[n].median)
