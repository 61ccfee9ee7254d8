"""Step 1: how far away is memory, on this machine?"""

from __future__ import annotations

from megafuse.learn.explain import mebibytes, seconds
from megafuse.learn.tutorial import draw
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import machine
from megafuse.learn.verdicts.rule import times

TITLE = "Memory is far away"


def run(tour: Tour) -> None:
    screen = tour.screen
    screen.say(
        "A kernel computes in registers. What it computes on comes from memory, through a cache or "
        "two on the way. How fast does each of them deliver?"
    )
    guess = screen.guess("how many times faster does the nearest one deliver than memory?")
    probes = tour.probes
    screen.table(
        ("", "working set", "GB/s", "× memory", "one load"),
        [
            (
                level.name,
                "" if level.working_set is None else mebibytes(level.working_set),
                f"{level.bandwidth / 1e9:,.1f}",
                times(level.bandwidth / probes.memory.bandwidth),
                "" if level.latency is None else seconds(level.latency),
            )
            for level in probes.levels
        ],
    )
    screen.say(f"Registers: {probes.arithmetic / 1e9:,.0f} G float operations a second.")
    screen.note(_how(tour))
    ratio = probes.levels[0].bandwidth / probes.memory.bandwidth
    text = machine.hierarchy(probes)
    if guess is not None and guess > 0:
        text += f" You said {guess:g}×; measured: {times(ratio)}."
    screen.say(text)
    screen.say(
        f"And a call costs, whatever it computes: one multiplication of one single float by "
        f"PyTorch takes {seconds(probes.call)} here. In that time memory could have moved "
        f"{mebibytes(round(probes.call * probes.copy))}."
    )
    tour.draw(lambda: draw.levels(probes, tour.machine))


def _how(tour: Tour) -> str:
    if not tour.compiles:
        return (
            "Measured with PyTorch's own sum and matrix product, because the probes could not be "
            "compiled here (`megafuse doctor` says why): the calls are part of these numbers, and "
            "latency cannot be seen at all."
        )
    if tour.device == "cuda":
        return (
            "All threads read the working set again and again; one load: one thread along a chain "
            "of addresses, each of which tells the next. Shared memory is what a block of threads "
            "has in common. Sources: learn/ladder/kernels/probes.cu."
        )
    return (
        "Each thread reads its own working set again and again; one load: one thread along a chain "
        "of addresses, each of which tells the next. Memory is read after the caches were filled "
        "with something else. Sources: learn/ladder/kernels/probes.cpp."
    )
