"""Verdicts on matrix products, and on what is not worth fusing."""

from __future__ import annotations

from megafuse.bench import Ratio
from megafuse.learn.ledger import Ledger
from megafuse.learn.verdicts import rule
from megafuse.learn.verdicts.rule import times

LIBRARYS = 0.9  # of the library's rate: from there on a product of one's own is as good


def intensity(flops: int, ledger: Ledger) -> str:
    """Operations for each byte asked for."""
    return f"{flops / ledger.bytes_moved:.2g} operations for each byte"


def mistake(naive: Ratio, tiled: Ratio, shipped: Ratio) -> str:
    """Each as a share of the library's rate."""
    share, repaired = naive.median, tiled.median
    text = f"The naive kernel reaches {share:.1%} of the library's rate for this very shape. "
    loose = next((each for each in (naive, tiled, shipped) if not rule.narrow(each)), None)
    if loose is not None:
        return text + rule.scattered("One of these shares", loose)
    if share < 0.5:
        text += (
            "It is one launch, it stores nothing in between, and by any count of launches or "
            "stored bytes it looks perfect. Only the comparison with the library's product shows "
            "what is wrong. "
        )
    else:
        text += "At this size that is no disaster. "
    gain = repaired / share
    if gain > 1.2:
        text += f"Using each float that was fetched more often makes it {times(gain)} as fast"
    else:
        text += "Tiles alone do not make it faster here"
    text += f", {repaired:.1%} of the library. "
    if repaired < LIBRARYS:
        text += (
            "What is still missing (larger tiles, loads ahead of their use, the best instructions) "
            "the library has. "
        )
    text += f"megafuse.linear_relu reaches {shipped.median:.0%} of the product alone"
    if shipped.median > 1.1:
        return text + ", so it is not the same product that it runs."
    return text + ": it calls the library, and does bias and ReLU as well."


def advice(own: Ratio) -> str:
    """What the best product of one's own, as a share of the library's, tells about fusing."""
    best = own.median
    text = (
        "How to see it in code of your own: time the library's product alone, for your shape, and "
        "ask what share of its rate your kernel reaches. "
    )
    if not rule.narrow(own):
        return text + "Measure until the spread is narrow: here it is not, and shows nothing."
    if best < LIBRARYS:
        return text + (
            f"Here the best of them reached {best:.0%}. Below nine tenths, leave the product to "
            "the library and fuse what surrounds it."
        )
    return text + f"Here one of them reached {best:.0%}: at this shape it is as good."


def product_by_hand(share: float) -> str:
    """PyTorch's own operations instead of its matrix product."""
    text = f"Multiplying and adding up by single operations reaches {share:.1%} of the library. "
    if share < 0.5:
        return text + "A matrix product is more than its arithmetic: it is the reuse of each float."
    return text + "At this size the library gains little by reuse."


def worth(name: str, most: float, gain: Ratio, fused: bool) -> str:
    """Whether fusing was worth it: `most` is the ceiling that was measured."""
    text = f"{name}: the ceiling is {most:.2f}×, so "
    text += "there is hardly anything to gain" if most < 1.1 else "there was something to gain"
    if not fused:
        return text + "."
    if rule.faster(gain) and gain.median > most * 1.1:
        return (
            f"{name}: the ceiling is {most:.2f}×, and it gained {gain.median:.2f}×. So the part "
            "that was to stay as it is became faster too, and the ceiling was none."
        )
    if rule.faster(gain):
        return text + f". It gained {gain.median:.2f}×."
    if rule.slower(gain):
        return text + f", and it lost: {gain.median:.2f}×. Not all that can be fused should be."
    if rule.same(gain):
        return text + ". It made about no difference."
    return f"{name}: the ceiling is {most:.2f}×, and fusing made {rule.unclear(gain)}."


def already(gain: Ratio, fused: bool) -> str:
    """One pass against one pass."""
    if not fused:
        return "Here they are the same code, but for megafuse's checks of its arguments."
    if rule.faster(gain):
        return (
            f"{times(gain.median)} as fast, though both are one operation: not by fusing, but by "
            "how its pass is written."
        )
    if rule.slower(gain):
        return f"Here PyTorch's is {times(1 / gain.median)} as fast: keep it."
    if rule.same(gain):
        return "About the same, as the count says."
    return f"That is {rule.unclear(gain)}."
