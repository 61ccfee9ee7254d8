"""Verdicts of `megafuse learn`: what a share of the roof, or a speed-up, says."""

from __future__ import annotations

from megafuse.bench import Ratio, Timing
from megafuse.learn.explain import seconds
from megafuse.learn.verdicts import rule


def counted(foretold: float, gain: Ratio) -> str:
    """A chain's speed-up beside the ratio of its bytes."""
    text = f"{foretold:.2f}× foretold by the bytes, {gain.median:.2f}× measured just now"
    if not rule.narrow(gain):
        return f"{text}, but between {gain.low:.2f}× and {gain.high:.2f}×: too scattered to tell"
    return text


def share(yours: Timing, copy: Timing) -> str:
    """A run beside a copy of the least bytes that it must move."""
    text = f"{copy.median / yours.median:.0%}: {seconds(yours.median)}; a copy of the least bytes "
    text += f"takes {seconds(copy.median)}"
    if rule.narrow(yours) and rule.narrow(copy):
        return text
    return text + " (these times scatter: something else may have been running)"


def waits(yours: Timing, copy: Timing) -> str:
    """Whether gelu_scale, fused, waits for memory here: exercise 1 begins with that it does."""
    if not (rule.narrow(yours) and rule.narrow(copy)):
        return "These times scatter too much to say what they wait for. Try it on a quiet machine."
    if yours.median <= (1 + rule.NEAR) * copy.median:
        return (
            "Fused gelu_scale runs at a copy's rate: it waits for memory, so its bytes are its "
            "time."
        )
    return (
        f"Fused gelu_scale takes {rule.times(yours.median / copy.median)} as long as the copy of "
        "its bytes: on this machine it does not wait for memory alone, but for its arithmetic "
        "too. Then bytes foretell less, and a speed-up may lie on either side of their ratio."
    )
