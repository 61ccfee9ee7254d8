"""An optimizer's step over all parameters of GPT-2: ours, and torch's three ways.

    python benchmarks/optimizers.py                       # AdamW, float32
    python benchmarks/optimizers.py --name SGD --dtype bfloat16 --json here.json

Every contender has parameters, gradients and state of its own, and they step in turns: a round is
one step of each, and another one begins each time. Times are medians of the rounds, and what they
are held against is the bytes that a step has to move over the rate of a copy, measured in the same
rounds. Without transformers and without a download: the shapes of GPT-2's 148 parameters are
written down here.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import megafuse as mf
from megafuse.bench import machine
from megafuse.runtime import provenance

WIDTH = 768
BLOCK = [
    *((WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)),
    *((WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,)),
]
SHAPES = [(50257, WIDTH), (1024, WIDTH), *12 * BLOCK, (WIDTH,), (WIDTH,)]
OURS = "megafuse"
HOW: dict[str, dict[str, Any]] = {"AdamW": {}, "SGD": {"momentum": 0.9}, "Lion": {}}
# What a step reads and writes, in tensors: all but the gradient are both.
PASSES = {"AdamW": 7, "SGD": 5, "Lion": 5}


def contenders(name: str) -> dict[str, Callable[..., torch.optim.Optimizer]]:
    known = {OURS: getattr(mf.optim, name)}
    theirs = getattr(torch.optim, name, None)
    for way in ("loop", "foreach", "fused") if theirs else ():
        ways = {"foreach": way == "foreach", "fused": way == "fused"}
        known[way] = lambda values, w=ways, **how: theirs(values, **w, **how)
    return known


def measure(name: str, dtype: torch.dtype, device: str, rounds: int) -> dict[str, list[float]]:
    steps: dict[str, Callable[[], Any]] = {}
    for contender, kind in contenders(name).items():
        values = [nn.Parameter(torch.randn(shape, device=device, dtype=dtype)) for shape in SHAPES]
        for value in values:
            value.grad = torch.randn_like(value)
        steps[contender] = kind(values, lr=1e-5, **HOW[name]).step
    elements = sum(torch.Size(shape).numel() for shape in SHAPES)
    from_there = torch.ones(elements, device=device, dtype=dtype)
    to_here = torch.empty_like(from_there)
    steps["copy"] = lambda: to_here.copy_(from_there)
    taken: dict[str, list[float]] = {each: [] for each in steps}
    names = list(steps)
    for round_ in range(rounds + 2):  # the first two build kernels and states
        first = round_ % len(names)  # whoever comes after the collection of garbage is slower
        for contender in names[first:] + names[:first]:
            spent = seconds(steps[contender], device)
            if round_ >= 2:
                taken[contender].append(spent)
        gc.collect()
    return taken


def seconds(step: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", choices=HOW, default="AdamW")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write machine, versions, commit and all times")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    taken = measure(options.name, dtype, options.device, options.rounds)
    medians = {contender: statistics.median(times) for contender, times in taken.items()}
    elements = sum(torch.Size(shape).numel() for shape in SHAPES)
    moved = PASSES[options.name] * elements * dtype.itemsize
    floor = moved / (2 * elements * dtype.itemsize / medians["copy"])
    shapes = f"{len(SHAPES)} parameters, {elements / 1e6:.0f} M elements"
    print(f"{options.name}, {shapes}, {options.dtype}")
    for contender, median in medians.items():
        if contender == "copy":
            continue
        # A round's own ratio: what disturbs a round disturbs both of its times.
        ratio = statistics.median(
            theirs / ours for theirs, ours in zip(taken[contender], taken[OURS], strict=True)
        )
        print(
            f"  {contender:9} {median * 1e3:8.2f} ms  {floor / median:4.0%} of a copy's rate"
            f"  {ratio:5.2f}× ours"
        )
    if options.json:
        commit, changed = provenance.commit()
        told = {
            "machine": machine.about(options.device),
            "versions": provenance.versions(),
            "commit": commit + (" and changes" if changed else ""),
            "optimizer": options.name,
            "dtype": options.dtype,
            "elements": elements,
            "seconds": taken,
        }
        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
