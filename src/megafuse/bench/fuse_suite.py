"""The suite `fuse`: functions of real models (model_functions.py), as `fuse` runs them.

Forward, and forward with backward where models want gradients, at 16 Mi elements on CUDA and 1 Mi
on a CPU; and a few of them at 1 Ki, where a call costs what its host code costs. Functions that
models have in 16 bits are measured in bfloat16 on CUDA, all others in float32.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from megafuse.bench import contenders as who
from megafuse.bench import first_call, options
from megafuse.bench.accuracy import leaves
from megafuse.bench.contenders import Contender, Function
from megafuse.bench.job import Job, Mode, Work, job_on
from megafuse.bench.model_cases import CASES, KI, MI, SIZES, Case, Draw
from megafuse.bench.op_job import copy_of
from megafuse.bench.refusal import Refused, unknown
from megafuse.bench.result import Result, Row
from megafuse.bench.spec import default_against
from megafuse.bench.suites import FUSE
from megafuse.bench.timing import cache_bytes
from megafuse.compiler import Fused, fuse
from megafuse.ops import OPS

# At 1 Ki elements: of one tensor, of many, of rows, of several results and kernels.
SMALL = ("gelu_tanh", "llama_norm", "rope_half", "causal_softmax", "adamw", "guided")


def asked(parsed: argparse.Namespace) -> bool:
    return bool(parsed.suite == FUSE)


def rows(parsed: argparse.Namespace, device: str) -> list[Job]:
    """A job for each function and mode, of those that are named or of all; forward rows first."""
    for option in (*options.DESCRIBING, "counters"):
        if getattr(parsed, option):
            raise Refused(f"a suite fixes its rows: leave out --{option}, or --suite")
    names = [str(case) for case in CASES]
    for name in parsed.ops:
        if name not in names:
            raise Refused(unknown(f"function in the suite {FUSE}", name, names))
    against = default_against(device)
    if parsed.against:
        against = tuple(options.split("against", parsed.against))
    chosen = [case for case in CASES if not parsed.ops or str(case) in parsed.ops]
    return list(_jobs(chosen, device, against))


def _jobs(cases: Sequence[Case], device: str, against: Sequence[str]) -> Iterator[Job]:
    elements = 16 * MI if device == "cuda" else MI
    for case in cases:
        yield job(case, "forward", elements, device, against)
    for case in cases:
        if case.grads:
            yield job(case, "forward+backward", elements, device, against)
    for case in cases:
        if str(case) in SMALL:
            yield job(case, "forward", KI, device, against)


def job(case: Case, mode: Mode, elements: int, device: str, against: Sequence[str]) -> Job:
    """One row. Large ones time first calls and a copy beside it, small ones an op of ours."""
    dtype = torch.bfloat16 if case.half and device == "cuda" else torch.float32
    sizes = SIZES[elements]
    gradients = mode == "forward+backward"
    fused = fuse(case.function)

    def draw() -> list[Any]:
        return case.arguments(Draw(sizes, dtype, device), gradients)

    def draw_another() -> list[Any]:
        return case.arguments(Draw(sizes.another_batch(), dtype, device), gradients)

    imagined = case.arguments(Draw(sizes, dtype, "meta"), False)
    found = [_contender(fused), *who.of_function(case.function, against)[1:]]
    made = job_on(case.function, imagined, mode, device, found, draw)
    made.dtype = str(dtype).removeprefix("torch.")
    made.remarks = lambda: _remarks(
        fused, case.arguments(Draw(SIZES[KI], dtype, device), gradients)
    )
    if elements == KI:
        made.yardsticks["built-in"] = lambda: _built_in(device)
        return made
    made.draw_another = draw_another
    if mode == "forward":
        work = made.work = _work(case.function, imagined, device)
        made.yardsticks["copy"] = lambda: copy_of(work.bytes_moved, device)
    return made


def _contender(fused: Fused) -> Contender:
    return Contender("fuse", "megafuse.fuse of the function", lambda: fused)


def _work(function: Function, imagined: list[Any], device: str) -> Work:
    """At least, every argument is read once and every result written once."""
    read = sum(t.nbytes for t in leaves(imagined))
    written = sum(t.nbytes for t in leaves(function(*imagined)))
    return Work(read + written, read + max(0, written - cache_bytes(device)), 0)


def _built_in(device: str) -> Function:
    x = torch.randn(4, 256, device=device)
    gelu_scale = OPS["gelu_scale"].fused
    return lambda *args: gelu_scale(x, 1.7)


def _remarks(fused: Fused, args: list[Any]) -> list[str]:
    """Where not everything was fused, what was not. The arguments are for a function that never
    was, to find out why."""
    if not fused.variants:
        why = fused.explain(*args).not_fused or "it failed before it was compiled"
        return [f"fuse: not fused, it ran as it is: {why.splitlines()[0]}"]
    library = fused.variants[0].library
    counted = [f"{name} ({library.count(name)}×)" for name in dict.fromkeys(library)]
    return [f"fuse: by the library: {', '.join(counted)}"] if library else []


# ---- what the run comes down to


def told(result: Result) -> list[str]:
    """The end of the run, in a few lines: who was faster where, host cost, first calls."""
    large = [row for row in result.rows if row.elements != KI]
    small = [row for row in result.rows if row.elements == KI]
    lines = [line for name in _rivals(large) for line in _against(name, large)]
    for name in ("built-in", *_rivals(small)):
        ratios = [r for row in small if (r := _ratio(row, name, _host(row)))]
        if ratios:
            said = f"host cost at 1 Ki elements: fuse takes {1 / statistics.median(ratios):.2f}×"
            lines.append(f"{said} {name}'s time (median of {len(ratios)} functions)")
    return [*lines, *first_call.told(large)]


def _rivals(rows: Sequence[Row]) -> list[str]:
    names = (e.name for row in rows for e in row.entries if e.name != row.subject)
    return [name for name in dict.fromkeys(names) if name not in ("copy", "built-in")]


def _against(name: str, rows: Sequence[Row]) -> list[str]:
    ratios = [(row, r) for row in rows if (r := _ratio(row, name, "cold"))]
    if not ratios:
        return []
    behind = [
        f"{row.op}{', with backward' if row.mode != 'forward' else ''} ({r:.2f}×)"
        for row, r in ratios
        if row.speedups[name]["cold"].verdict == "slower"
    ]
    median = statistics.median(r for _, r in ratios)
    line = f"{name} takes {median:.2f}× fuse's time (median of {len(ratios)} rows)"
    return [
        f"{line}; fuse is slower in {', '.join(behind)}"
        if behind
        else f"{line}; fuse is behind nowhere"
    ]


def _ratio(row: Row, name: str, clock: str) -> float | None:
    found = row.speedups.get(name, {}).get(clock)
    return found.median if found else None


def _host(row: Row) -> str:
    return "host" if row.device == "cuda" else "warm"
