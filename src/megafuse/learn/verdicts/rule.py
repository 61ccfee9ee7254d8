"""When numbers prove a sentence, and when they do not."""

from __future__ import annotations

from megafuse.bench import Ratio, Timing

NEAR = 0.25  # of the prediction, either way
_SAME = 0.1  # medians that differ by less are about the same
_TOLD_APART = 1.02  # and by more than this they differ, if every round says so


def narrow(spread: Timing | Ratio) -> bool:
    """Four of five samples within a quarter of each other."""
    return spread.high <= (1 + NEAR) * spread.low


def near(predicted: float, measured: float) -> bool:
    return abs(measured / predicted - 1) <= NEAR


def foretold(predicted: float, taken: Timing) -> bool:
    """Whether the time itself came as predicted; a ratio of two times proves less."""
    return narrow(taken) and near(predicted, taken.median)


def faster(gain: Ratio) -> bool:
    return gain.low > 1 and gain.median >= _TOLD_APART


def slower(gain: Ratio) -> bool:
    return gain.high < 1 and gain.median <= 1 / _TOLD_APART


def same(gain: Ratio) -> bool:
    close = 1 / (1 + _SAME) < gain.median < 1 + _SAME
    return close and gain.low > 1 / (1 + NEAR) and gain.high < 1 + NEAR


def times(ratio: float) -> str:
    """1.07×, 2.8×, 12×"""
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×" if ratio >= 2 else f"{ratio:.2f}×"


def unclear(gain: Ratio) -> str:
    """Rounds that contradict each other."""
    return f"no clear difference ({gain.low:.2f}× to {gain.high:.2f}×, round by round)"


def scattered(what: str, taken: Timing | Ratio) -> str:
    """Why nothing follows from a number."""
    return (
        f"{what} scatters by {times(taken.high / taken.low)} between rounds, so it proves nothing "
        "either way: something else may have been running."
    )
