"""The demo's numbers as figures, in one page with a benchmark of the same op from a cold cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from megafuse.bench import report, roof
from megafuse.bench import run as runner
from megafuse.bench.row import Effort
from megafuse.bench.spec import Spec, shape_of
from megafuse.learn import explain
from megafuse.learn.figures import Bar, Figure, Point, bars, data_paths, lines, roofline
from megafuse.learn.ledger import Ledger
from megafuse.learn.measure import Measured
from megafuse.ops import OPS

OP = "gelu_scale"
_FUSED, _SEPARATE, _PREDICTED, _COPY = "s0", "s1", "s2", "soft"


def figures(
    ours: str,
    stops: Mapping[str, Sequence[str]],
    results: Sequence[Measured],
    ledgers: Mapping[int, Mapping[str, Ledger]],
    predicted: Mapping[int, Mapping[str, float]],
    device: str,
) -> list[Figure]:
    """Data paths, bars, speed-up against size, roofline; fused and separate in the colours that
    the page's own charts give to fused and eager."""
    return [
        data_paths(
            "The way of the data",
            "Every arrow is the whole tensor. A fused kernel keeps what is between its operations "
            "in registers.",
            stops,
        ),
        _times(ours, results[-1], predicted[results[-1].size], device),
        _speedups(ours, results, predicted, device),
        _roofline(ours, results[-1], ledgers[results[-1].size], device),
    ]


def write(
    page: str, drawn: Sequence[Figure], sizes: Sequence[int], device: str, budget: float
) -> None:
    """The page: these figures, and the same op measured by `megafuse bench`."""
    specs = [Spec(OP, "forward", torch.float32, shape_of(n), ("eager", "copy")) for n in sizes]
    result = runner.run(
        runner.jobs_of(specs, device),
        suite="demo",
        command=f"megafuse bench {OP} --elements {','.join(map(str, sizes))} --against eager",
        effort=Effort(budget, visits=1),
    )
    report.save(report.page([result], ["demo"], drawn, "Two operations, or one"), page)


def _clock(device: str) -> str:
    """How the demo measures. The benchmark below it on the page is always cold."""
    return "cold cache" if device == "cuda" else "warm cache"


def _times(ours: str, measured: Measured, predicted: Mapping[str, float], device: str) -> Figure:
    taken = {"separate": measured.separate, ours: measured.fused}
    per_second, unit = (1e3, "ms") if measured.separate.median >= 1e-3 else (1e6, "µs")
    shown = [
        Bar(
            name,
            timing.median * per_second,
            f"{explain.seconds(timing.median)}, predicted {explain.seconds(predicted[name])}",
            _FUSED if name == ours else _SEPARATE,
        )
        for name, timing in taken.items()
    ]
    copy = measured.clone.median
    return bars(
        f"Time for {explain.amount(measured.size)} floats, {_clock(device)}",
        "Predicted: the bytes of each way at the copy's rate, before it was run. The roof is that "
        "copy, timed beside them.",
        [*shown, Bar("copy", copy * per_second, explain.seconds(copy), _COPY)],
        unit,
        roof=copy * per_second,
    )


def _speedups(
    ours: str,
    results: Sequence[Measured],
    predicted: Mapping[int, Mapping[str, float]],
    device: str,
) -> Figure:
    return lines(
        f"Speed-up in the demo, {_clock(device)}",
        "Where calls or arithmetic cost more than bytes, what was measured leaves the prediction.",
        [m.size for m in results],
        {
            "measured": [m.gain.median for m in results],
            "predicted from bytes": [
                predicted[m.size]["separate"] / predicted[m.size][ours] for m in results
            ],
        },
        "floats",
        "times as fast",
        (_SEPARATE, _PREDICTED),
    )


def _roofline(ours: str, measured: Measured, ledgers: Mapping[str, Ledger], device: str) -> Figure:
    roofs = roof.roofs(device)
    flops = OPS[OP].cost(torch.empty(measured.size, device="meta"), 1.7, "tanh").flops
    taken = {ours: measured.fused.median, "separate": measured.separate.median}
    points = [
        Point(name, flops / ledgers[name].bytes_moved, flops / seconds)
        for name, seconds in taken.items()
    ]
    caption = (
        "The slope is this machine's measured bandwidth of a copy into memory that is already "
        "there, the flat part its measured rate of a float32 matrix product. Both ways "
        "do the same arithmetic; fusing does more per byte."
    )
    if any(p.rate > 1.05 * roofs.copy * p.intensity for p in points):
        caption += " A point above the slope: these floats came from the cache, not from memory."
    return roofline(
        f"Roofline of the demo, {explain.amount(measured.size)} floats, {_clock(device)}",
        caption,
        roofs.copy,
        roofs.gemm["float32"],
        points,
    )
