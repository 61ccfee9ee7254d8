"""Measured numbers in plain words. Each sentence is chosen by the numbers it speaks of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from megafuse.bench import Ratio
from megafuse.bench.table import seconds as seconds
from megafuse.learn.ledger import Ledger
from megafuse.learn.measure import Calls, Measured


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
    return text + "So already here the work itself counts more than the calls."


def prediction(size: int, copy: float, separate: Ledger, ours: Ledger, name: str) -> str:
    """What bytes alone say, before anything is run. `copy` is the time of a copy of all floats."""
    rate = 8 * size / copy
    times = [ledger.bytes_moved / rate for ledger in (separate, ours)]
    gain = times[0] / times[1]
    verdict = f"{name} should be {gain:.1f}× as fast" if gain > 1 else "both should take as long"
    return (
        f"A plain copy of {amount(size)} floats reads and writes each once, 8 bytes, and takes "
        f"{seconds(copy)} here: {rate / 1e9:.1f} GB/s. At that rate the separate way's "
        f"{megabytes(separate.bytes_moved)} take {seconds(times[0])}, and the "
        f"{megabytes(ours.bytes_moved)} of {name} {seconds(times[1])}. So {verdict}, "
        "if arithmetic costs nothing."
    )


def outcome(predicted: float, gain: Ratio, guess: float | None) -> str:
    """The prediction, and the reader's own, beside what came."""
    text = f"Predicted from the bytes {predicted:.1f}×, measured {gain.median:.2f}×"
    text += f" (four of five {gain.low:.2f}–{gain.high:.2f})"
    if guess is not None:
        text += f", your guess {guess:g}×"
    if gain.low <= predicted <= gain.high or abs(gain.median / predicted - 1) < 0.1:
        text += ". Counting bytes was enough."
    elif gain.median > predicted:
        text += ". More than bytes alone: the separate way has other costs too, see below."
    else:
        text += ". Less than bytes alone: something else takes time in both, see below."
    if guess is not None:
        ours, yours = (abs(math.log(gain.median / told)) for told in (predicted, guess))
        text += " You were closer than the ledger." if yours < ours else ""
    return text


def bytes_moved(measured: Measured, separate: Ledger, fused: Ledger) -> str:
    """What each way moves, and what fresh memory costs."""
    copy, clone = measured.copy.median, measured.clone.median
    text = (
        f"The separate way moves {megabytes(separate.bytes_moved)}, because the result of "
        f"{separate.operations[0]} is written out and read back; the fused way moves "
        f"{megabytes(fused.bytes_moved)}, as much as a plain copy."
    )
    if clone < 1.3 * copy:
        return text
    return text + (
        f" A copy into memory that is already there takes {seconds(copy)}, into fresh memory "
        f"{seconds(clone)}: {seconds(clone - copy)} is the price of fresh memory for one result "
        f"this large. The separate way needs {separate.passes} such results, the fused way one."
    )


def roof(measured: Measured, separate: Ledger) -> str:
    """How near each way comes to the copy, which nothing that moves those bytes can beat."""
    clone, fused, apart = (t.median for t in (measured.clone, measured.fused, measured.separate))
    text = (
        f"What reads and writes every float cannot be faster than a copy ({seconds(clone)}). "
        f"Fused takes {seconds(fused)}, {clone / fused:.0%} of the copy's rate: "
    )
    if fused <= 1.25 * clone:
        text += "its arithmetic hides behind the memory. "
    else:
        text += "not memory alone, the processor also has instructions to get through. "
    text += (
        f"{separate.passes} such copies, one for each pass of the separate way, would take "
        f"{seconds(separate.passes * clone)}; it takes {seconds(apart)}"
    )
    text += (
        ", so memory does not explain all of it." if separate.passes * clone < 0.85 * apart else "."
    )
    if measured.gain.high < 1:
        text += " Here fusing lost. That is worth a bug report."
    return text


REFERENCE = (
    "Both columns are the same code. Fused kernels cannot be built on this machine, so "
    "megafuse.gelu_scale ran its PyTorch reference: right results, no speed-up. megafuse also "
    "checks its arguments in Python then, which shows at small sizes; anything else that differs "
    "is noise. `megafuse doctor` says what is missing and how to get it."
)


def busy(load: float, processors: int) -> str:
    """A warning about a machine that others use."""
    return (
        f"Other programs were running: a load of {load:.1f} on {processors} processors when the "
        "demo began. Threads that wait for a processor make times grow at random. Run it again "
        "on a quiet machine."
    )


# ---- words


def operations(ledger: Ledger) -> str:
    """1 operation, 2 operations"""
    return "1 operation" if ledger.passes == 1 else f"{ledger.passes} operations"


def amount(size: int) -> str:
    """1 K, 16 M: powers of 1024, as memory is counted."""
    for unit, name in ((1 << 20, " M"), (1 << 10, " K")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def megabytes(size: int) -> str:
    """268 MB: powers of 1000, as bandwidth is counted."""
    return f"{_three_figures(size / 1e6)} MB"


def listed(names: Sequence[str]) -> str:
    """gelu, then mul"""
    return ", then ".join(names)


def _three_figures(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
