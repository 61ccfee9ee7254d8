"""Step 6: the famous mistake, a "fused" linear and ReLU around a matrix product of one's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.bench import Timing, speedup
from megafuse.learn.explain import seconds
from megafuse.learn.figures import Point
from megafuse.learn.ladder import LADDERS, launch
from megafuse.learn.ladder.rung import Rung
from megafuse.learn.tutorial import blanks, draw, plain, roof, typed
from megafuse.learn.tutorial.tour import IEEE, Tour, ieee_products
from megafuse.learn.verdicts import product

TITLE = "The mistake: fusing around a matrix product of one's own"
SHAPES = {
    ("cuda", False): (4096, 1024, 1024),
    ("cuda", True): (512, 256, 256),
    ("cpu", False): (256, 512, 512),
    ("cpu", True): (64, 128, 128),
}


def run(tour: Tour) -> None:
    screen, ladder = tour.screen, LADDERS["linear_relu"]
    rows, outs, ins = SHAPES[tour.device, tour.quick]
    x, weight = (torch.randn(n, ins, device=tour.device) / ins**0.25 for n in (rows, outs))
    bias = torch.randn(outs, device=tour.device)
    screen.say(
        f"relu(x·weightᵀ + bias), with x [{rows}, {ins}] and weight [{outs}, {ins}]: fuse all of "
        "it in one kernel, since fusing is good? This is how nearly everyone writes it first:"
    )
    screen.code(_loop("linear_relu/1_naive", tour.device))
    typed.picture(tour, blanks.NAIVE_PRODUCT)
    rungs = ladder.rungs
    if not tour.compiles:
        screen.say(plain.WHY)
        rungs = plain.linear_relu()
    flops = 2 * rows * outs * ins
    naive = rungs[0].ledger(x, weight, bias)
    screen.say(
        f"Count first. The product is {flops / 1e6:,.0f} M operations, and x, weight, bias and "
        f"result together are {(x.nbytes + weight.nbytes + rows * outs * 4) / 1e6:,.1f} MB. "
        f"But this asks for {naive.bytes_moved / 1e6:,.0f} MB: {product.intensity(flops, naive)}."
    )
    guess = screen.guess("what percentage of the library's rate will it reach?")

    ways: dict[str, Callable[[], Tensor]] = {
        rung.name: functools.partial(rung.run, x, weight, bias) for rung in rungs
    }
    library = "library's GEMM"
    with ieee_products():
        taken = tour.time({library: lambda: F.linear(x, weight, bias), **ways}, "products")
        results = {name: way() for name, way in ways.items()}
    exact = ladder.exact(x, weight, bias)
    ratios = {name: speedup(taken[library], timing) for name, timing in taken.items()}
    shares = {name: ratio.median for name, ratio in ratios.items()}
    screen.table(
        ("", "time", "GFLOP/s", "of the\nlibrary", "largest\nerror"),
        [
            (
                name,
                seconds(timing.median),
                f"{flops / timing.median / 1e9:,.1f}",
                f"{shares[name]:.1%}",
                "" if name == library else f"{float((results[name] - exact).abs().max()):.1e}",
            )
            for name, timing in taken.items()
        ],
    )
    screen.note(
        "The library's GEMM is F.linear with its bias, for this shape, in float32; the others do "
        "ReLU as well." + (f" {IEEE}" if tour.fuses and tour.device == "cuda" else "")
    )
    if guess is not None:
        screen.say(f"You said {guess:g} %, measured {shares[rungs[0].name]:.1%}.")
    if tour.compiles:
        screen.say(product.mistake(*(ratios[rung.name] for rung in rungs)))
    else:
        screen.say(product.product_by_hand(shares[rungs[0].name]))
    typed.fill_in(tour, [blanks.PRODUCT], "linear_relu", first=2)
    _under_the_roof(tour, rungs, taken, flops, x, weight, bias)
    own = max((ratios[rung.name] for rung in rungs[:-1]), key=lambda ratio: ratio.median)
    screen.say(product.advice(own))
    tour.draw(lambda: draw.shares("The mistake and its repair", shares, tour.machine))


def _under_the_roof(
    tour: Tour, rungs: Sequence[Rung], taken: Mapping[str, Timing], flops: int, *tensors: Tensor
) -> None:
    """By the bytes that each asks for: what a tile saves shows there, also where a cache helps."""
    tour.screen.say(
        "The same under the roof, by the bytes that each asks for: tiles use every float again "
        "and again, and move the product to the right, away from memory. What is left is "
        "arithmetic, and there the library is at home. (Above the dotted slope: a cache served it.)"
    )
    points = [
        Point(rung.name, flops / rung.ledger(*tensors).bytes_moved, flops / taken[rung.name].median)
        for rung in rungs
    ]
    roof.show(tour, "The product, under the roof", tour.probes.copy, points, "a copy in memory")


def _loop(file: str, device: str) -> list[str]:
    """The source without its comment and its includes."""
    lines = launch.source(file, device).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith('extern "C"'))
    return lines[first:]
