"""Small results files for tests: the shape of real ones, with numbers that are easy to check."""

from __future__ import annotations

from typing import Any

from megafuse.bench.result import Accuracy, Entry, Result, Roofs, Row, Span, Speedup

COPY_ROOF, FLOP_ROOF = 4e12, 50e12


def span(median: float, spread: float = 0.02) -> Span:
    return Span(median, median * (1 - spread), median * (1 + spread), 40)


def speedup(median: float) -> Speedup:
    low, high = median * 0.96, median * 1.04
    verdict = "ambiguous" if low <= 1 <= high else "faster" if median > 1 else "slower"
    return Speedup(median, low, high, 40, verdict)


def entry(name: str, seconds: float, row: dict[str, Any], clocks: dict[str, float]) -> Entry:
    """A contender that took this long cold, and that times each clock's factor."""
    error = 1e-7 * seconds / 1e-6
    return Entry(
        name,
        about=f"what {name} is",
        times={clock: span(seconds * factor) for clock, factor in clocks.items()},
        accuracy=Accuracy(
            *(error, error / 4, error * 3, error / 2),
            {"50": error / 8, "99": error, "99.9": error * 2},
            exact=0.875,
        ),
        launches=3 if name == "eager" else 1,
        kernels=["add_kernel", "mul_kernel", "exp_kernel"] if name == "eager" else ["one_kernel"],
        bytes_real=row["bytes_least"] * (3 if name == "eager" else 1),
        peak_extra_bytes=row["bytes_least"] if name == "eager" else 0,
        bytes_per_second=row["bytes_least"] / seconds,
        flop_per_second=row["flops"] / seconds,
        roof_share=row["bytes_least"] / seconds / COPY_ROOF,
    )


def row(
    op: str = "gelu_scale",
    elements: int = 1 << 20,
    seconds: float = 4e-6,
    mode: str = "forward",
    dtype: str = "float32",
    rivals: dict[str, float] | None = None,
    clocks: dict[str, float] | None = None,
    shape: list[int] | None = None,
    **more: Any,
) -> Row:
    """One op at one size. `rivals` take so many times longer than the subject, `fused`."""
    rivals = {"eager": 2.5, "compile": 1.01, "copy": 0.9} if rivals is None else rivals
    clocks = {"cold": 1.0, "warm": 0.5, "host": 2.0, "graph": 1.1} if clocks is None else clocks
    counts = {"bytes_least": 8 * elements, "flops": 12 * elements}
    entries = [entry("fused", seconds, counts, clocks)]
    entries += [entry(name, seconds * factor, counts, clocks) for name, factor in rivals.items()]
    for each in entries:
        each.yardstick = each.name == "copy"
    return Row(
        *(op, mode, dtype, shape or [elements // 64, 64], elements, "cuda", "fused"),
        **counts,
        **{"roof": "memory"} | more,
        entries=entries,
        speedups={name: {c: speedup(factor) for c in clocks} for name, factor in rivals.items()},
        conditions={"clock_mhz": 1980, "temperature_c": 44, "throttled": []},
    )


def failing(row: Row, name: str, error: str) -> Row:
    """The same row, where this contender's result was wrong."""
    row.entries = [Entry(e.name, e.about, error) if e.name == name else e for e in row.entries]
    row.speedups.pop(name, None)
    return row


def result(rows: list[Row], gpu: str = "NVIDIA H200", commit: str = "ab" * 20) -> Result:
    return Result(
        suite="seeds",
        command="megafuse bench --suite seeds --json results.json",
        date="2026-11-15T05:00:00+00:00",
        commit=commit,
        changed=False,
        machine={"device": "cuda", "gpu": gpu, "cpu": "a CPU", "threads": 16, "l2_bytes": 62914560},
        versions={"megafuse": "0.1.0", "torch": "2.11.0", "triton": None, "python": "3.12.3"},
        roofs=Roofs(COPY_ROOF, 4.2e12, {"float32": FLOP_ROOF}, 2e-6, "2026-11-15"),
        rows=rows,
        seconds_taken=75.0,
        start_up={"import torch": span(1.25)},
    )
