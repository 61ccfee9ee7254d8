"""Step 9: what fusing a function of one's own gained."""

from __future__ import annotations

from megafuse.bench import Ratio
from megafuse.learn.verdicts import rule


def gained(predicted: float, gain: Ratio, fuses: bool) -> str:
    """`predicted`: how many times fewer bytes it moves."""
    text = f"By its bytes alone it would be {predicted:.1f} times as fast; "
    text += f"it is {gain.median:.2f} times (four of five: {gain.low:.2f} to {gain.high:.2f}). "
    if not fuses:
        return text + "There is no compiler here, so both ran as PyTorch runs them."
    if not rule.narrow(gain):
        return text + rule.scattered("The gain", gain)
    if rule.slower(gain):
        return text + "So here it does not pay, and the function is better left as it is."
    if not rule.faster(gain):
        return text + "Times that overlap like these show no difference."
    if rule.near(predicted, gain.median):
        return text + "The bytes that it saves are the time that it saves."
    if gain.median < predicted:
        return text + (
            "That is less than the bytes say. A cache that holds what eager stores in between "
            "would have this effect, and so would arithmetic that takes longer than memory."
        )
    return text + (
        "That is more than the bytes say. Fresh memory, which eager asks the system for at each "
        "operation, would have this effect."
    )
