"""What the numbers say. Each sentence is chosen by the numbers it speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megafuse.bench import Ratio, speedup
from megafuse.learn.explain import megabytes, seconds

if TYPE_CHECKING:
    from megafuse.learn.ledger import Ledger
    from megafuse.learn.probes import Probes
    from megafuse.learn.tutorial.climb import Climb, Climbed

_SAME = 0.1  # two times that differ by less are said to be about the same


def kernels(number: int) -> str:
    """1 kernel, 2 kernels"""
    return "1 kernel" if number == 1 else f"{number} kernels"


def busy(load: float, processors: int, threads: int) -> str:
    """A warning about a machine that others use."""
    return (
        f"Other programs are running: a load of {load:.1f} on {processors} processors. A thread "
        "that has to wait for a processor would be measured instead of memory, so this run uses "
        f"{threads} thread{'s' * (threads > 1)}. Try it again on a quiet machine."
    )


def times(ratio: float) -> str:
    """1.07×, 12×"""
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×" if ratio >= 2 else f"{ratio:.2f}×"


def guessed(guess: float | None, came: float) -> str:
    """The reader's guess beside what came."""
    text = f"The last rung is {times(came)} as fast as the first."
    if guess is None or guess <= 0:
        return text
    if max(guess / came, came / guess) < 1.5:
        return text + f" You said {guess:g}: well guessed."
    return text + f" You said {guess:g}: {'more' if came > guess else 'less'} than you thought."


# ---- step 1 and 2


def hierarchy(probes: Probes) -> str:
    """What the way to memory costs."""
    nearest, memory = probes.levels[0], probes.memory
    ratio = nearest.bandwidth / memory.bandwidth
    text = f"Data comes from {nearest.name} {times(ratio)} as fast as from memory"
    text += ". " if ratio >= 1.5 else ": here that is hardly a difference. "
    if memory.latency is None:
        return text
    waiting = probes.arithmetic * memory.latency
    text += (
        f"One load from memory, alone, takes {seconds(memory.latency)}; in that time this machine "
        f"could do {waiting:,.0f} multiplications and additions. "
    )
    if nearest.latency is not None and memory.latency > 1.5 * nearest.latency:
        text += (
            f"That load is {times(memory.latency / nearest.latency)} as long as one from "
            f"{nearest.name}. "
        )
    return text + "Bandwidth hides latency only where many loads are under way at once."


def budget(probes: Probes, needed: int) -> str:
    """How many operations come free with a float."""
    free = probes.operations_per_float
    text = (
        f"A float that is read and written moves 8 bytes: {seconds(8 / probes.copy)} at "
        f"{probes.copy / 1e9:.1f} GB/s. In registers this machine does "
        f"{probes.arithmetic / 1e9:,.0f} G operations a second, so in that time {free:,.0f} of "
        f"them. gelu·scale needs about {needed} for a float. "
    )
    if free >= 2 * needed:
        return text + (
            f"That is {needed / free:.0%} of the budget: while memory is busy with one float, the "
            "processor is done with it long ago. Another pass over memory is dear, another "
            "operation in the same pass is nearly free. That is why fusing works."
        )
    if free >= needed:
        return text + (
            "It fits, barely. Fusing saves a pass over memory, but the arithmetic is no longer "
            "free here."
        )
    return text + (
        "That is more than the budget: on this machine arithmetic, not memory, binds this "
        "operation, and fusing can save less than the bytes say."
    )


def work(added: list[int], taken: list[float], free: float) -> str:
    """Where, along more and more operations a float, the time begins to grow."""
    base = taken[0]
    grown = next((k for k, t in zip(added, taken, strict=True) if t > 1.5 * base), None)
    if grown is None:
        return (
            f"Up to {added[-1]} operations a float the time hardly grew: memory was the limit all "
            "along."
        )
    before = max((k for k in added if k < grown), default=0)
    text = (
        f"Up to {before} operations a float the time is within half of the copy's; at {grown} it "
        f"is {times(taken[added.index(grown)] / base)} it. "
    )
    if before / 2 <= free <= 2 * grown:
        return text + f"The budget said {free:,.0f}: counting was enough to know."
    return text + (
        f"The budget said {free:,.0f}. It counts a processor that never waits; this loop reaches "
        "another share of its rate, and a busy machine shifts both."
    )


# ---- step 4 and 5


def steps(climbed: Climb) -> list[str]:
    """What each rung gained over the one below it."""
    pairs = zip(climbed.rungs, climbed.rungs[1:], strict=False)
    return [_step(below, above) for below, above in pairs]


def _step(below: Climbed, above: Climbed) -> str:
    saved = below.ledger.bytes_moved / above.ledger.bytes_moved
    gain = speedup(below.timing, above.timing)
    if saved > 1.05:
        moved = f"{megabytes(above.ledger.bytes_moved)} instead of "
        text = f"{above.rung.name}: {moved}{megabytes(below.ledger.bytes_moved)}, "
    else:
        text = f"{above.rung.name}: the same bytes, "
    if gain.low > 1 and gain.median >= 1 + _SAME:
        return text + f"{times(gain.median)} as fast as {below.rung.name}." + _why(saved, gain)
    if gain.high < 1 and gain.median <= 1 / (1 + _SAME):
        text += f"and {times(1 / gain.median)} as long as {below.rung.name}."
        return text + (" What it saves costs more than it brings here." if saved > 1.05 else "")
    if 1 / (1 + _SAME) < gain.median < 1 + _SAME:
        text += f"about as fast as {below.rung.name}."
        waited = " Memory was not what that one waited for, or a cache served it already."
        return text + (waited if saved > 1.05 else "")
    return text + f"and {unclear(gain)} to {below.rung.name}."


def unclear(gain: Ratio) -> str:
    """Rounds that contradict each other."""
    return f"no clear difference ({gain.low:.2f}× to {gain.high:.2f}×, round by round)"


def _why(saved: float, gain: Ratio) -> str:
    if saved <= 1.05 and gain.median >= 1.5:
        return " Not how much is moved, but how."
    if saved > 1.05 and gain.low <= saved <= gain.high:
        return " The bytes that it saves are the time that it saves."
    return ""


def predictions(climbed: Climb) -> str:
    """Where counting bytes foretold the time, and where not."""
    parts = []
    close = [c.rung.name for c in climbed.rungs if 0.75 <= c.seconds / c.predicted <= 1.35]
    above = [c for c in climbed.rungs if c.seconds / c.predicted > 1.35]
    below = [c for c in climbed.rungs if c.seconds / c.predicted < 0.75]
    if close:
        parts.append(f"The bytes foretold the time of: {', '.join(close)}.")
    if above:
        worst = max(above, key=lambda c: c.seconds / c.predicted)
        parts.append(
            f"{worst.rung.name} takes {times(worst.seconds / worst.predicted)} its prediction: it "
            "waits for something else than the bytes it asked for, be it the order of its loads "
            "or its instructions."
        )
    if below:
        best = min(below, key=lambda c: c.seconds / c.predicted)
        parts.append(
            f"{best.rung.name} needs {best.seconds / best.predicted:.0%} of its prediction, less "
            "than a copy would: a cache kept part of what it asks for more than once, or something "
            "disturbed the copy."
        )
    return " ".join(parts)


def top(climbed: Climb) -> str:
    """How near the last rung comes to the roof."""
    last = climbed.rungs[-1]
    share = climbed.share(last)
    text = f"{last.rung.name} reaches {share:.0%} of the copy's rate"
    if share >= 0.8:
        return text + ": next to nothing is left to gain in one pass over memory."
    if share >= 0.4:
        return text + (
            ": the rest is instructions, and the call itself. Only fewer bytes, by fusing it with "
            "its neighbours, would help much more."
        )
    return text + ": here it is not memory that binds, but instructions or the call itself."


# ---- step 6


def mistake(share: float, repaired: float, shipped: float) -> str:
    """Shares of the library's rate: naive, tiled, and the op."""
    text = f"The naive kernel reaches {share:.1%} of the library's rate for this very shape. "
    if share < 0.5:
        text += (
            "It is one launch, it stores nothing in between, and by any count of launches or "
            "stored bytes it looks perfect. Only the comparison with the library's product shows "
            "what is wrong. "
        )
    else:
        text += "At this size that is no disaster; a larger one would show it. "
    gain = repaired / share
    if gain > 1.2:
        text += f"Using each float that was fetched more often makes it {times(gain)} as fast"
    else:
        text += "Tiles alone do not make it faster here"
    text += f", {repaired:.1%} of the library. "
    if repaired < 0.7:
        text += (
            "What is still missing (larger tiles, loads ahead of their use, the best instructions) "
            "is years of work that the library holds already. "
        )
    text += f"megafuse.linear_relu calls it, and reaches {shipped:.0%}"
    if shipped >= 0.9:
        return text + " of the product alone, with bias and ReLU done on the way."
    return text + " of the product alone; bias and ReLU are the rest."


def intensity(flops: int, ledger: Ledger) -> str:
    """Operations for each byte asked for."""
    return f"{flops / ledger.bytes_moved:.2g} operations for each byte"


def product_by_hand(share: float) -> str:
    """PyTorch's own operations instead of its matrix product."""
    text = f"Multiplying and adding up by single operations reaches {share:.1%} of the library. "
    if share < 0.5:
        return text + "A matrix product is more than its arithmetic: it is the reuse of each float."
    return text + "At this size the library has little to reuse."


# ---- step 5 and 7


def sums(climbed: Climb) -> str:
    """How the order of additions shows in the errors."""
    first, last = climbed.rungs[0], climbed.rungs[-1]
    text = f"Look at the errors: {first.error:.1e} at the bottom, {last.error:.1e} at the top. "
    if first.error > 1.5 * last.error:
        return text + (
            "One sum that grows and grows rounds off more of each small number; many short sums, "
            "joined at the end, are faster and nearer to the truth."
        )
    return text + "Both orders of adding were good enough for rows this short."


def bits(differ: float, theirs: float, ours: float, fused: bool) -> str:
    """Whether two ways gave the same bits, and which was nearer."""
    if not fused:
        return "They are the same code here, so the same bits: this machine compiles no kernels."
    if differ == 0:
        return "Here they are, in every float. On another machine they may not be."
    text = f"No: {differ:.0%} of the floats differ in their last bits. "
    if differ < 0.005:
        text = "Not everywhere: a few floats differ in their last bits. "
    if ours <= theirs:
        nearer = "the fused one is nearer to the truth, or as near"
    elif ours <= 2 * theirs + 1e-6:
        nearer = "both are as near to the truth as float32 lets them"
    else:
        return text + "And the fused one errs more than it should: please report that."
    return text + f"Neither is wrong: {nearer}. A test for equal bits would call it a failure."


def orders(results: list[float], exact: float) -> str:
    """Sums of the same numbers in several orders."""
    different = len(set(results))
    if different == 1:
        return "This time all orders agree; with other numbers they will not."
    worst = max(results, key=lambda value: abs(value - exact))
    return (
        f"{different} different results, all of them right as far as float32 goes; the worst is "
        f"off by {abs(worst - exact) / abs(exact):.1e} of the sum. A fused kernel adds in an order "
        "of its own, so its last bits are its own too."
    )


def rounding(apart: float, fused: float, really_fused: bool) -> str:
    """bfloat16: mean relative errors of two operations and of one kernel."""
    text = f"Mean error against float64: two operations {apart:.1e}, megafuse {fused:.1e}"
    if not really_fused:
        return text + ", the same, because it runs as two operations here."
    if fused < 0.95 * apart:
        return text + f": fusing made it {times(apart / fused)} as accurate."
    if fused <= 1.05 * apart:
        return text + ": about the same here."
    return text + ": worse here, which it should not be. Please report that."


# ---- step 8


def worth(name: str, most: float, gain: Ratio, fused: bool) -> str:
    """Whether fusing was worth it."""
    text = f"{name}: the ceiling is {most:.2f}×, so "
    text += "hardly worth anyone's time" if most < 1 + _SAME else "there was something to gain"
    if not fused:
        return text + "."
    if gain.low > 1 and gain.median > most * (1 + _SAME):
        return text + (
            f". It gained {gain.median:.2f}×, more than that: the part that stays was faster too."
        )
    if gain.low > 1:
        return text + f". It gained {gain.median:.2f}×."
    if gain.high < 1:
        return text + f", and it lost: {gain.median:.2f}×. Not all that can be fused should be."
    return text + f". It made {unclear(gain)}."


def already(gain: Ratio, fused: bool) -> str:
    """One pass against one pass."""
    if not fused:
        return "Here they are the same code, but for megafuse's checks of its arguments."
    if gain.low > 1 and gain.median >= 1 + _SAME:
        return (
            f"{times(gain.median)} as fast, though it moves the same bytes: not by fusing, but by "
            "how its one pass is written."
        )
    if gain.high < 1 and gain.median <= 1 / (1 + _SAME):
        return f"Here PyTorch's is {times(1 / gain.median)} as fast: keep it."
    if 1 / (1 + _SAME) < gain.median < 1 + _SAME:
        return "About the same, as the bytes say."
    return f"That is {unclear(gain)}."
