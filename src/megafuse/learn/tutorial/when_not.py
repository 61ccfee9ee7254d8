"""Step 8: when not to fuse, by measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.bench import speedup
from megafuse.learn.explain import amount, operations, seconds
from megafuse.learn.ledger import count
from megafuse.learn.tutorial.tour import IEEE, Tour, ieee_products
from megafuse.learn.verdicts import product
from megafuse.ops import OPS

TITLE = "When not to fuse"


@dataclass(frozen=True)
class Case:
    """Something that one might fuse: the whole, and the part that fusing could save."""

    name: str
    whole: Callable[[], Tensor]
    rest: Callable[[], Tensor]  # the whole without the part: what stays however well one fuses
    fused: Callable[[], Tensor]


def run(tour: Tour) -> None:
    tour.screen.say(
        "Three places to think twice. First the ceiling: time the whole, and the whole without "
        "what fusing could remove; fusing that part cannot gain more than the quotient. Then the "
        "fused one."
    )
    cases = _cases(tour)
    guess = tour.screen.guess("which of these gains most? " + _listed(cases))
    rows, said = [], []
    for case in cases:
        ways = {"whole": case.whole, "rest": case.rest, "fused": case.fused}
        with ieee_products():
            taken = tour.time(ways, case.name)
        whole, fused = taken["whole"], taken["fused"]
        most, gain = max(1.0, whole.low / taken["rest"].low), speedup(whole, fused)
        rows.append(
            (
                case.name,
                seconds(whole.median),
                seconds(fused.median),
                f"{most:.2f}×",
                f"{gain.median:.2f}×",
                f"{gain.low:.2f}–{gain.high:.2f}",
            )
        )
        said.append(product.worth(case.name, most, gain, tour.fuses))
    tour.screen.table(("", "separate", "fused", "ceiling", "gain", "4 of 5 in"), rows)
    if not tour.fuses:
        tour.screen.say(
            "megafuse runs its PyTorch reference here, after it has checked its arguments in "
            "Python: there is nothing to gain by it, and at small sizes the checks show."
        )
    if tour.fuses and tour.device == "cuda":
        tour.screen.note(IEEE)
    for sentence in said:
        tour.screen.say(sentence)
    _already(tour)
    tour.screen.recall(guess)
    tour.screen.say(
        "So before fusing anything, ask: is it bound by memory (step 2)? Is it more than one pass "
        "(count them)? Is it a share of the whole that matters? Three times yes, and the ladder "
        "is worth climbing."
    )


def _cases(tour: Tour) -> list[Case]:
    device, quick = tour.device, tour.quick
    side = {"cuda": 512 if quick else 4096, "cpu": 128 if quick else 768}[device]
    a, w, b = (torch.randn(*s, device=device) for s in ((side, side), (side, side), (side,)))
    small = torch.randn(1 << 10, device=device)
    return [
        Case(
            f"relu after a {side} × {side} product",
            lambda: F.relu(F.linear(a, w, b)),
            lambda: F.linear(a, w, b),
            lambda: OPS["linear_relu"].fused(a, w, b),
        ),
        Case(
            f"gelu·scale of {amount(small.numel())} beside it",
            lambda: _beside(F.linear(a, w, b), F.gelu(small, approximate="tanh") * 1.7),
            lambda: F.linear(a, w, b),
            lambda: _beside(F.linear(a, w, b), OPS["gelu_scale"].fused(small, 1.7)),
        ),
    ]


def _beside(first: Tensor, _second: Tensor) -> Tensor:
    return first


def _listed(cases: list[Case]) -> str:
    named = "; ".join(f"({n}) {case.name}" for n, case in enumerate(cases, 1))
    return f"{named}; ({len(cases) + 1}) LayerNorm, which PyTorch has as one operation"


def _already(tour: Tour) -> None:
    """F.layer_norm is one pass already."""
    x = torch.randn(tour.floats // 1024, 1024, device=tour.device)
    counted = count(lambda: F.layer_norm(x, (1024,)))
    least = OPS["layer_norm"].cost(x, None, None, 1e-5).bytes_moved
    taken = tour.time(
        {"theirs": lambda: F.layer_norm(x, (1024,)), "ours": lambda: OPS["layer_norm"].fused(x)},
        "LayerNorm",
    )
    theirs, ours = taken["theirs"], taken["ours"]
    tour.screen.say(
        f"PyTorch dispatches F.layer_norm as {operations(counted)}, so nothing is left to join. By "
        f"count it must move {least / 1e6:,.0f} MB at least: x once, the result once. It takes "
        f"{seconds(theirs.median)}, megafuse.layer_norm {seconds(ours.median)}. "
        + product.already(speedup(theirs, ours), tour.fuses)
    )
