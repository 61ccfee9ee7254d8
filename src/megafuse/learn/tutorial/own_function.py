"""Step 9: a function of the reader's own, as `fuse` runs it."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from megafuse.bench import speedup
from megafuse.compiler import fuse
from megafuse.learn.explain import amount, seconds
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import own_function as verdict

TITLE = "A function of your own"
BETA = 1.5


def swish_gate(x: Tensor, gate: Tensor, beta: float) -> Tensor:
    swish = x * torch.sigmoid(beta * x)
    return swish * gate


def run(tour: Tour) -> None:
    fused = fuse(swish_gate)
    x, gate = (torch.randn(tour.floats, device=tour.device) for _ in range(2))
    tour.screen.say(
        "The ladders were climbed by hand. For a function of yours, megafuse.fuse writes the "
        "kernel: torch's tracer runs the function once, and what can share a pass over memory "
        "becomes one functor. A function:"
    )
    tour.screen.code(inspect.getsource(swish_gate).splitlines())
    tour.screen.say("fuse(swish_gate).source, with your names and lines in it:")
    tour.screen.code(_struct(fused.source_for(x, gate, BETA)))
    told = fused.explain(x, gate, BETA).forward
    assert told is not None
    assert told.eager is not None
    foretold = told.eager.bytes_moved / told.bytes_moved
    tour.screen.say(
        f"explain counts: {told.eager.launches} operations move "
        f"{amount(told.eager.bytes_moved)}, {told.launches} kernel {amount(told.bytes_moved)}."
    )
    guess = tour.screen.guess("how many times as fast?")
    taken = tour.time(
        {"eager": lambda: swish_gate(x, gate, BETA), "fuse": lambda: fused(x, gate, BETA)},
        "swish_gate",
    )
    gain = speedup(taken["eager"], taken["fuse"])
    tour.screen.table(
        ("swish_gate", "bytes moved", "median time"),
        [
            ("PyTorch", amount(told.eager.bytes_moved), seconds(taken["eager"].median)),
            ("megafuse.fuse", amount(told.bytes_moved), seconds(taken["fuse"].median)),
        ],
    )
    tour.screen.say(verdict.gained(foretold, gain, tour.fuses))
    tour.screen.recall(guess)
    tour.screen.say(
        "Now one of your own: `megafuse learn your_own` takes it through diagnose, fuse and "
        "optimize. A new size or another beta compiles nothing. What fuse leaves to the library, "
        "and why, explain says for any function: docs/fuse.md. If one is worth a kernel by hand, "
        "`megafuse new NAME --from file.py:function` makes an op of it, to begin with."
    )


def _struct(source: str) -> list[str]:
    """The functor alone, without the headings above it."""
    lines = source.rstrip().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("struct"))
    return lines[first:]
