"""Measured numbers in plain words. Each sentence is chosen by the numbers it speaks of."""

from __future__ import annotations

from collections.abc import Sequence

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


def large(measured: Measured, separate: Ledger, fused: Ledger) -> str:
    """Why the large size takes as long as it does: bytes, held against copies of them."""
    copy, clone = measured.copy.median, measured.clone.median
    return "".join(
        (
            f"The separate way moves {megabytes(separate.bytes_moved)}, because the result of "
            f"{separate.operations[0]} is written out and read back; the fused way moves "
            f"{megabytes(fused.bytes_moved)}, as much as a plain copy. Timed beside them: a copy "
            f"into memory that is already there {seconds(copy)}, a copy into fresh memory "
            f"{seconds(clone)}, fused {seconds(measured.fused.median)}, separate "
            f"{seconds(measured.separate.median)}. ",
            _fresh_memory(copy, clone, separate),
            _against_the_copy(measured, separate.passes),
            " Here fusing lost. That is worth a bug report." if measured.gain.high < 1 else "",
        )
    )


def _fresh_memory(copy: float, clone: float, separate: Ledger) -> str:
    if clone < 1.3 * copy:
        return ""
    return (
        f"So {seconds(clone - copy)} is the price of fresh memory for one result this large. The "
        f"separate way needs {separate.passes} such results, the fused way one. "
    )


def _against_the_copy(measured: Measured, passes: int) -> str:
    clone, fused, separate = (t.median for t in (measured.clone, measured.fused, measured.separate))
    text = f"Fused takes {fused / clone:.2f}× the copy into fresh memory: "
    if fused <= 1.25 * clone:
        text += "its arithmetic hides behind the memory. "
    else:
        text += "not memory alone, the processor also has instructions to get through. "
    text += (
        f"{passes} such copies, one for each pass of the separate way, would take "
        f"{seconds(passes * clone)}; it takes {seconds(separate)}"
    )
    if passes * clone < 0.85 * separate:
        return text + ", so memory does not explain all of it."
    return text + "."


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


def seconds(value: float) -> str:
    """Three figures with a unit that suits them."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    unit, name = next((u for u in units if value >= u[0]), units[-1])
    return f"{_three_figures(value / unit)} {name}"


def megabytes(size: int) -> str:
    """268 MB: powers of 1000, as bandwidth is counted."""
    return f"{_three_figures(size / 1e6)} MB"


def listed(names: Sequence[str]) -> str:
    """gelu, then mul"""
    return ", then ".join(names)


def _three_figures(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
