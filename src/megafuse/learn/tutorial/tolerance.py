"""Step 7: what "right" means for floats."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from megafuse.learn.ladder import LADDERS
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import rightness
from megafuse.ops import OPS

TITLE = "Right, but not bit for bit"
SCALE = 1.7


def run(tour: Tour) -> None:
    _bits(tour)
    _order(tour)
    _rounding(tour)
    _too_lax(tour)
    tour.screen.say(rightness.RULE)


def _bits(tour: Tour) -> None:
    x = torch.randn(tour.floats, device=tour.device)
    op, exact = OPS["gelu_scale"], LADDERS["gelu_scale"].exact(x, SCALE)
    ours, theirs = op.fused(x, SCALE), op.reference(x, SCALE)
    differ = float((ours != theirs).double().mean())
    errors = [float((each - exact).abs().max()) for each in (theirs, ours)]
    tour.screen.say("Is megafuse.gelu_scale equal to F.gelu(x) * scale, bit for bit?")
    guess = tour.screen.guess("in how many of 100 floats do they differ?")
    tour.screen.table(
        ("gelu(x)·scale", "largest error\nagainst float64"),
        [("PyTorch, two operations", f"{errors[0]:.1e}"), (_ours(tour), f"{errors[1]:.1e}")],
    )
    tour.screen.say(rightness.bits(differ, errors[0], errors[1], tour.fuses))
    tour.screen.recall(guess)


def _ours(tour: Tour) -> str:
    return "megafuse.gelu_scale" if tour.fuses else "megafuse.gelu_scale (reference)"


def _order(tour: Tour) -> None:
    """The same numbers, added in other orders."""
    x = torch.rand(1 << 14, device=tour.device)
    exact = float(x.double().sum())
    sums = {
        "one after the other": _chain(x),
        "by torch.sum": float(x.sum()),
        "sorted, by torch.sum": float(x.sort().values.sum()),
    }
    tour.screen.say(
        f"Addition of floats depends on the order. The same {x.numel():,} numbers, three times:"
    )
    tour.screen.table(
        ("added", "float32 sum", "error"),
        [(name, f"{value:.4f}", f"{abs(value - exact):.1e}") for name, value in sums.items()],
    )
    tour.screen.say(rightness.orders(list(sums.values()), exact))


def _chain(x: torch.Tensor) -> float:
    """As one thread would add, and as no operation of PyTorch's does."""
    total = torch.zeros(())
    for value in x.cpu().unbind():
        total += value
    return float(total)


def _rounding(tour: Tour) -> None:
    """bfloat16: separate operations round in between, a fused kernel once."""
    x = torch.randn(min(tour.floats, 1 << 20), device=tour.device).bfloat16()
    op = OPS["gelu_scale"]
    exact = F.gelu(x.double(), approximate="tanh") * SCALE
    apart, fused = (
        float(((each.double() - exact).abs() / (exact.abs() + 1e-3)).mean())
        for each in (op.reference(x, SCALE), op.fused(x, SCALE))
    )
    tour.screen.say(
        "Where fusing changes results most is in 16 bits. Two operations round gelu's result to "
        "bfloat16 before it is scaled; one kernel keeps it in float32 and rounds once."
    )
    tour.screen.say(rightness.rounding(apart, fused, tour.fuses))


def _too_lax(tour: Tour) -> None:
    """A tolerance that lets a wrong kernel pass."""
    x = torch.randn(min(tour.floats, 1 << 20), device=tour.device)
    exact = LADDERS["gelu_scale"].exact(x, SCALE)
    wrong = float((x * torch.sigmoid(1.702 * x) * SCALE - exact).abs().max())
    right = float((OPS["gelu_scale"].reference(x, SCALE) - exact).abs().max())
    tour.screen.say(rightness.too_lax(wrong, right))
