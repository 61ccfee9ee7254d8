"""The tutorial's figures, for `--html PAGE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from megafuse.learn import figures
from megafuse.learn.explain import seconds
from megafuse.learn.figures import Bar, Figure
from megafuse.learn.probes import Probes
from megafuse.learn.tutorial.climb import Climb


def levels(probes: Probes, machine: str) -> Figure:
    """Bandwidth of each level of memory."""
    return figures.bars(
        "What each level delivers",
        f"Reading on {machine}, all threads together.",
        [
            Bar(level.name, level.bandwidth / 1e9, f"{level.bandwidth / 1e9:,.1f} GB/s")
            for level in probes.levels
        ],
        "GB/s",
    )


def budget(added: Sequence[int], taken: Sequence[float], floats: int, machine: str) -> Figure:
    """Time of a copy against operations on each float."""
    return figures.lines(
        "Operations come free until they do not",
        f"A copy of {floats:,} floats on {machine}, with so many operations on each.",
        [float(k) for k in added[1:]],
        {"copy that computes": [t * 1e3 for t in taken[1:]]},
        "operations a float",
        "ms",
    )


def rungs(title: str, climbed: Climb, machine: str) -> Figure:
    """The ladder's times."""
    return figures.bars(
        title,
        f"Time on {machine}; in brackets what its bytes foretold, and its share of a copy's rate.",
        [
            Bar(
                f"{number} {each.rung.name}",
                each.seconds * 1e3,
                f"{seconds(each.seconds)} ({seconds(each.predicted)}, {climbed.share(each):.0%})",
            )
            for number, each in enumerate(climbed.rungs, 1)
        ],
        "ms",
    )


def shares(title: str, of_library: Mapping[str, float], machine: str) -> Figure:
    """Percent of the library's matrix product."""
    return figures.bars(
        title,
        f"Percent of the rate of F.linear for the same shape, on {machine}.",
        [Bar(name, 100 * share, f"{share:.1%}") for name, share in of_library.items()],
        "%",
        roof=100.0,
    )
