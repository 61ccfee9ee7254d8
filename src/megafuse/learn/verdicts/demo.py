"""The demo's verdicts: was it as predicted, what does a call cost, how near is the roof."""

from __future__ import annotations

import math

from megafuse.bench import Ratio, Timing
from megafuse.learn.explain import amount, megabytes, operations, seconds
from megafuse.learn.ledger import Ledger
from megafuse.learn.measure import Calls, Measured
from megafuse.learn.verdicts import rule

REFERENCE = (
    "Both columns are the same code. Fused kernels cannot be built on this machine, so "
    "megafuse.gelu_scale ran its PyTorch reference: right results, no speed-up. megafuse also "
    "checks its arguments in Python then, which shows at small sizes; anything else that differs "
    "is noise. `megafuse doctor` says what is missing and how to get it."
)


def prediction(size: int, copy: float, separate: Ledger, ours: Ledger, name: str) -> str:
    """What bytes alone say, before anything is run. `copy` is the time of a copy of all floats."""
    rate = 8 * size / copy
    taken = [ledger.bytes_moved / rate for ledger in (separate, ours)]
    gain = taken[0] / taken[1]
    verdict = f"{name} should be {gain:.1f}× as fast" if gain > 1 else "both should take as long"
    return (
        f"A plain copy of {amount(size)} floats reads and writes each once, 8 bytes, and takes "
        f"{seconds(copy)} here: {rate / 1e9:.1f} GB/s. At that rate the separate way's "
        f"{megabytes(separate.bytes_moved)} take {seconds(taken[0])}, and the "
        f"{megabytes(ours.bytes_moved)} of {name} {seconds(taken[1])}. So {verdict}, "
        "if arithmetic costs nothing."
    )


def outcome(
    predicted: tuple[float, float],
    taken: tuple[Timing, Timing],
    gain: Ratio,
    guess: float | None,
) -> str:
    """The prediction, and the reader's own, beside what came: (separate, fused) each."""
    told = predicted[0] / predicted[1]
    text = f"Predicted from the bytes {told:.1f}×, measured {gain.median:.2f}×"
    text += f" (four of five {gain.low:.2f}–{gain.high:.2f})"
    if guess is not None:
        text += f", your guess {guess:g}×"
    text += ". " + _fits(predicted, taken, gain)
    if guess is not None and rule.narrow(gain):
        ours, yours = (abs(math.log(gain.median / said)) for said in (told, guess))
        text += " You were closer than the ledger." if yours < ours else ""
    return text


def _fits(predicted: tuple[float, float], taken: tuple[Timing, Timing], gain: Ratio) -> str:
    if not rule.narrow(gain):
        return rule.scattered("The speed-up", gain)
    each = list(zip(("separate", "fused"), predicted, taken, strict=True))
    off = [
        f"{name} took {seconds(t.median)} where {seconds(p)} were predicted"
        for name, p, t in each
        if not rule.foretold(p, t)
    ]
    if not off:
        return (
            "Both times, too, came within a quarter of the prediction. Counting bytes was enough."
        )
    told = predicted[0] / predicted[1]
    if rule.near(told, gain.median):
        start = "The ratio came as predicted, but the times did not: "
    elif gain.median > told:
        start = "More than the bytes say: "
    else:
        start = "Less than the bytes say: "
    return f"{start}{', and '.join(off)}. Bytes alone do not explain that; see the roof, below."


def small(calls: Calls, separate: Ledger, device: str) -> str:
    """Why the small size takes as long as it does: what a call costs with no data."""
    share = min(calls.separate_one / calls.separate, 1.0)
    text = (
        f"A call on one single float, so on next to no data, takes {seconds(calls.separate_one)} "
        f"separate and {seconds(calls.fused_one)} fused. On {amount(calls.size)} floats the "
        f"separate way takes {seconds(calls.separate)}, fused {seconds(calls.fused)}. So "
        f"{share:.0%} of the separate time is the price of {operations(separate)}, whatever "
        "their size. "
    )
    if device == "cuda":
        text += "(Calls in a row, launches included; the table has the GPU's own time.) "
    if share >= 0.5:
        return text + "Small work is about the number of calls, and fusing makes them one."
    if calls.separate_alone is not None and calls.separate_alone < calls.separate / (1 + rule.NEAR):
        return text + (
            f"On one thread it takes {seconds(calls.separate_alone)}: most of the rest is the "
            "price of waking other threads, not of the work."
        )
    return text + "The rest is the work on those floats: already here it counts more than calls do."


def bytes_moved(measured: Measured, separate: Ledger, fused: Ledger) -> str:
    """What each way moves, and what fresh memory costs."""
    copy, clone = measured.copy, measured.clone
    text = (
        f"The separate way moves {megabytes(separate.bytes_moved)}, because the result of "
        f"{separate.operations[0]} is written out and read back; the fused way moves "
        f"{megabytes(fused.bytes_moved)}, as much as a plain copy."
    )
    if clone.median < 1.3 * copy.median or clone.low <= copy.high:
        return text
    return text + (
        f" A copy into memory that is already there takes {seconds(copy.median)}, into fresh "
        f"memory {seconds(clone.median)}: {seconds(clone.median - copy.median)} is the price of "
        f"fresh memory for one result this large. The separate way needs {separate.passes} such "
        "results, the fused way one."
    )


def roof(measured: Measured, separate: Ledger, in_cache: float | None) -> str:
    """How near each way comes to the copy. `in_cache`: seconds that the fused way would take for
    all floats, if each took as long as where they stay in the cache; None where not measured."""
    clone, fused, apart = measured.clone, measured.fused, measured.separate
    text = (
        f"A copy, which reads and writes every float, takes {seconds(clone.median)}. Fused takes "
        f"{seconds(fused.median)}, {clone.median / fused.median:.0%} of the copy's rate"
    )
    if not (rule.narrow(clone) and rule.narrow(fused)):
        loose = fused if not rule.narrow(fused) else clone
        return f"{text}. {rule.scattered('Such a time', loose)}" + _lost(measured)
    if fused.median <= (1 + rule.NEAR) * clone.median:
        text += ": its arithmetic hides behind the memory. "
    else:
        text += ": memory alone is not what it waits for. " + _instead(fused.median, in_cache)
    copies = separate.passes * clone.median
    text += (
        f"{separate.passes} such copies, one for each pass of the separate way, would take "
        f"{seconds(copies)}; it takes {seconds(apart.median)}"
    )
    if not rule.narrow(apart):
        return f"{text}. {rule.scattered('That time', apart)}" + _lost(measured)
    if apart.median > (1 + rule.NEAR) * copies:
        text += ", so memory does not explain all of it."
    elif apart.median < copies / (1 + rule.NEAR):
        text += ", less than that: part of what it wrote was still in a cache when it came back."
    else:
        text += "."
    return text + _lost(measured)


def _instead(fused: float, in_cache: float | None) -> str:
    if in_cache is None:
        return ""
    if in_cache >= fused / (1 + rule.NEAR):
        return (
            "Where all floats stay in the cache, each takes as long "
            f"({seconds(in_cache)} for as many): the processor's instructions bind. "
        )
    return (
        f"Where all floats stay in the cache, as many would take {seconds(in_cache)}: "
        "instructions are a part of it, and they do not all hide behind the memory. "
    )


def _lost(measured: Measured) -> str:
    lost = rule.slower(measured.gain)
    return " Here fusing lost. That is worth a bug report." if lost else ""


def busy(load: float, processors: int) -> str:
    """A warning about a machine that others use."""
    return (
        f"Other programs were running: a load of {load:.1f} on {processors} processors when the "
        "demo began. Threads that wait for a processor make times grow at random. Run it again "
        "on a quiet machine."
    )
