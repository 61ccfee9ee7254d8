"""Verdicts on the machine: how far memory is, and how many operations come with a float."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megafuse.bench import Timing
from megafuse.learn.explain import seconds
from megafuse.learn.verdicts.rule import NEAR, narrow, times

if TYPE_CHECKING:
    from megafuse.learn.probes import Probes


def busy(load: float, processors: int, threads: int) -> str:
    """A warning about a machine that others use."""
    return (
        f"Other programs are running: a load of {load:.1f} on {processors} processors. A thread "
        "that has to wait for a processor would be measured instead of memory, so this run uses "
        f"{threads} thread{'s' * (threads > 1)}. Try it again on a quiet machine."
    )


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
    """How many operations fit into the time of a float."""
    free = probes.operations_per_float
    text = (
        f"A float that is read and written moves 8 bytes: {seconds(8 / probes.copy)} at "
        f"{probes.copy / 1e9:.1f} GB/s. In registers this machine does "
        f"{probes.arithmetic / 1e9:,.0f} G operations a second, so in that time {free:,.0f} of "
        f"them. gelu·scale counts {needed} for a float. "
    )
    if free >= 2 * needed:
        return text + (
            f"That is {needed / free:.0%} of the budget: there is time for them while memory is "
            "busy with the float. Then another pass over memory is dear, and another operation in "
            "the same pass is nearly free. That is why fusing works."
        )
    if free >= needed:
        return text + (
            "It fits, barely. Fusing saves a pass over memory, but the arithmetic is no longer "
            "free here."
        )
    return text + (
        "That is more than the budget: on this machine the arithmetic of this operation takes "
        "longer than its bytes, and fusing it can save less than the bytes say."
    )


def work(added: list[int], taken: list[Timing], free: float) -> str:
    """Where, along more and more operations a float, the time begins to grow."""
    base = taken[0].low
    grown = knee(added, taken)
    if grown is None:
        text = f"Up to {added[-1]} operations a float the time hardly grew: memory was the limit."
        if free > added[-1] / (1 + NEAR):
            return text + f" The budget, {free:,.0f}, said so."
        return text + f" The budget said {free:,.0f}, and it was not reached: it counts too few."
    before = max((k for k in added if k < grown), default=0)
    at = taken[added.index(grown)]
    text = (
        f"Up to {before} operations a float the time is within half of the copy's; at {grown} it "
        f"is {times(at.low / base)} it. "
    )
    if not (narrow(taken[0]) and narrow(at)):
        return text + f"The budget said {free:,.0f}; these times scatter too much to confirm it."
    if before / (1 + NEAR) <= free <= grown * (1 + NEAR):
        return text + f"The budget said {free:,.0f}: counting was enough to know."
    less = "fewer" if free < before else "more"
    return text + (
        f"The budget said {free:,.0f}, {less} than came free: it divides two rates that were "
        "measured apart, as if loads, stores and arithmetic never waited for each other."
    )


def knee(added: list[int], taken: list[Timing]) -> int | None:
    """The first count at which the copy takes half as long again."""
    base = taken[0].low
    return next((k for k, t in zip(added, taken, strict=True) if t.low > 1.5 * base), None)


def hidden(fused: Timing, copy: Timing) -> bool:
    """Whether an operation's arithmetic leaves the bytes to be seen: within half of a copy."""
    return fused.low <= 1.5 * copy.low


def chain(fused: Timing, copy: Timing) -> str:
    """Why the first ladder does not climb with gelu here."""
    return (
        f"Measured just now: gelu(x)·scale in one pass takes {seconds(fused.low)} at its best, and "
        f"a copy of x {seconds(copy.low)}. Its arithmetic would hide what a pass over memory "
        "costs, so this ladder takes a chain that fits the budget: relu(x + bias), 2 operations a "
        "float."
    )
