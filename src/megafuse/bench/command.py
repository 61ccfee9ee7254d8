"""The command `megafuse bench`."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megafuse.bench.result import CLOCKS, Result

if TYPE_CHECKING:  # imported when used: `megafuse --help` should not wait for all of it
    from megafuse.bench.job import Job
    from megafuse.bench.spec import Spec

_EXAMPLES = """\
examples:
  megafuse bench                          the quick suite, on this machine
  megafuse bench --suite seeds            every size that the project records
  megafuse bench --json a.json --html a.html      also a file, and a page
  megafuse bench swiglu --dtype bfloat16 --elements 1Mi,16Mi --mode backward
  megafuse bench linear_gelu --shape 16384x768 --features 3072 \\
      --set approximate=tanh,none         a layer, in two forms
  megafuse bench attention --shape 8x12x512x64 --set causal=yes --set mask=yes
  megafuse bench gelu_scale --shape 64x1024 --against eager,mine.py:gelu
  megafuse bench mine.py:gated --shape 4096x1024/1024    a function of yours,
      with a shape for each tensor, against megafuse.fuse and torch.compile
  megafuse bench --suite fuse --seconds 600       functions of real models
  megafuse bench --suite models --model gpt2,bert --mode forward,train --jobs 4
      whole models: megafuse.optimize, eager, and torch.compile in three modes
  megafuse bench --sweep --seconds 60     random shapes: where is fused behind?

A contender is checked before it is timed: one whose result is wrong shows its
error and no time.
"""


_BUDGETS = {"quick": 0.6, "fuse": 0.5}  # seconds a row and clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "ops", nargs="*", metavar="OP", help="ops (see megafuse ops), or file.py:function"
    )
    parser.add_argument(
        "--suite",
        help="quick (the default without OP), seeds, transformer, all, fuse (functions of "
        "models, as megafuse.fuse runs them) or models (whole ones, as megafuse.optimize does); "
        "with OP: of it, these rows",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--dtype", help="float32 (default), bfloat16, float16, float64; a,b,…")
    parser.add_argument("--shape", help="the first tensor's, such as 4096x1024; a,b,…")
    parser.add_argument("--elements", help="instead of a shape: 1Mi (default), 500K, …; a,b,…")
    parser.add_argument("--features", help="how wide a layer makes it, such as 3072; a,b,…")
    parser.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="an argument of the op: act=relu, p=0.1, causal=yes; an optional tensor: "
        "mask=yes, bias=no; NAME=a,b,…",
    )
    parser.add_argument("--mode", help="forward (default), grad, backward, all; a,b,…")
    parser.add_argument(
        "--against",
        help="eager, compile, compile-max, compile-graphs, fuse, liger, module:function; a,b,…",
    )
    parser.add_argument("--budget", type=_positive, help="seconds a row and clock (default 1)")
    parser.add_argument("--visits", type=_whole, help="times to come back to a row (default 3)")
    parser.add_argument(
        "--counters", action="store_true", help="also count the bytes really moved (CUDA, ncu)"
    )
    parser.add_argument("--measure-roofs", action="store_true", help="measure the roofs again")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="cold", help="the table's; all are measured"
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="random shapes, dtypes and modes: lists where fused is behind (status 1)",
    )
    parser.add_argument(
        "--seconds", type=_positive, help="end after so many (default: 600 for a sweep, else never)"
    )
    parser.add_argument("--seed", type=_seed, help="of a sweep's random cases (default 0)")
    parser.add_argument("--threads", type=_whole, help="of a sweep on the CPU (default: torch's)")
    parser.add_argument("--json", metavar="FILE", help="write all numbers to FILE")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots to FILE")
    _add_arguments_of_models(parser)


def _add_arguments_of_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "the suite models",
        "Every contender has a process of its own. --mode is forward, train (with the\n"
        "optimizer), decode; --dtype float32, bfloat16: all of them where not given.\n"
        "--device, --budget, --seconds and --json as above.",
    )
    group.add_argument(
        "--model", help="bert, gpt2, llama, qwen3, vit, t5, resnet50, convnext, unet, moe; a,b,…"
    )
    group.add_argument(
        "--contender",
        help="optimize, optimize-graphs, eager, compile, reduce-overhead, max-autotune; a,b,…",
    )
    group.add_argument(
        "--jobs",
        type=_whole,
        help="processes that prepare side by side (default 1); they are measured one at a time",
    )
    group.add_argument(
        "--limit", type=_positive, help="seconds to a contender's first result (default 300)"
    )
    group.add_argument(
        "--warm", action="store_true", help="also the first result with filled caches"
    )
    group.add_argument(
        "--no-accuracy", action="store_true", help="leave out the comparison with float64"
    )
    group.add_argument("--add", action="store_true", help="add to what the file of --json has")
    group.add_argument("--tiny", action="store_true", help="two small layers: to try it out")


def run(parsed: argparse.Namespace) -> int:
    """Measures and prints.

    Exit status 1: an op of ours was wrong; 2: nothing was measured; 130: stopped with Ctrl-C, after
    which what was measured is printed and written all the same.
    """
    from megafuse.bench import function_rows, fuse_suite, options
    from megafuse.bench import run as runner
    from megafuse.bench.contenders import Unknown
    from megafuse.bench.refusal import Refused
    from megafuse.bench.row import Effort
    from megafuse.bench.screen import Screen
    from megafuse.bench.suites import FUSE, MODELS
    from megafuse.bench.table import note
    from megafuse.runtime.cache import CacheError

    specs: list[Spec] = []
    try:
        if parsed.sweep:
            return _sweep(parsed)
        _refuse_a_sweeps_options(parsed)
        if parsed.suite == MODELS:
            return _models(parsed)
        _refuse_options_of_models(parsed)
        device = options.device(parsed.device)
        if fuse_suite.asked(parsed):
            jobs = fuse_suite.rows(parsed, device)
        elif function_rows.asked(parsed):
            jobs = function_rows.rows(parsed, device)
        else:
            specs = options.specs(parsed, device)
            jobs = runner.jobs_of(specs, device)
        _refuse_to_waste_minutes(parsed, jobs)
    except (Refused, Unknown) as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    suite = options.suite(parsed)
    screen = Screen(jobs, parsed.clock)
    # torch.compile would have the user allow TF32; here float32 is float32.
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
    try:
        result = runner.run(
            jobs,
            suite=suite,
            command=shlex.join(["megafuse", *options.typed(parsed)]),
            effort=Effort(parsed.budget or _BUDGETS.get(suite, 1.0), parsed.visits or 3),
            watcher=runner.Watcher(screen.visiting, screen.doing, screen.finished),
            measure_roofs=parsed.measure_roofs,
            seconds=parsed.seconds,
        )
        if suite == "seeds" and not result.stopped:
            from megafuse.bench import start_up

            screen.doing("timing fresh processes")
            result.start_up = start_up.measure()
    except CacheError as error:
        screen.clear()
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    if result.rows and not any(e.times for row in result.rows for e in row.entries):
        screen.clear()
        print(f"megafuse: {_first_error(result)}", file=sys.stderr)
        return 2
    screen.end(result)
    if suite == FUSE:
        print("\n".join(n for words in fuse_suite.told(result) for n in note(words)))
    _write(result, parsed)
    if parsed.counters and not result.stopped:
        print("reading the GPU's counters: ncu runs every row once more", flush=True)
        _count(result, specs)
        _write(result, parsed)
    if result.stopped and not (parsed.seconds and result.seconds_taken >= parsed.seconds):
        return 130
    return int(any(row.entries[0].error for row in result.rows))


def _sweep(parsed: argparse.Namespace) -> int:
    from megafuse.bench.sweep import command

    return command.run(parsed)


def _models(parsed: argparse.Namespace) -> int:
    from megafuse.bench.models import command

    return command.run(parsed)


def _refuse_options_of_models(parsed: argparse.Namespace) -> None:
    from megafuse.bench.refusal import Refused

    for name in ("model", "contender", "jobs", "limit", "warm", "no_accuracy", "add", "tiny"):
        if getattr(parsed, name):
            raise Refused(f"--{name.replace('_', '-')} is an option of --suite models")


def _refuse_a_sweeps_options(parsed: argparse.Namespace) -> None:
    from megafuse.bench.refusal import Refused

    for name in ("seed", "threads"):
        if getattr(parsed, name) is not None:
            raise Refused(f"--{name} is an option of --sweep")


def _refuse_to_waste_minutes(parsed: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """What would be found out after the measurement, or would make it worthless."""
    from megafuse.bench import counters, refusal
    from megafuse.bench.refusal import Refused

    if parsed.counters and counters.available():
        raise Refused(str(counters.available()))
    refusal.unwritable(parsed.json, parsed.html)
    if any(job.multiplies and job.dtype == "float32" for job in jobs):
        refusal.narrower_float32(jobs[0].device)


def _first_error(result: Result) -> str:
    row = result.rows[0]
    return f"{row.op}, {row.label}: {row.entries[0].error}"


def _count(result: Result, specs: Sequence[Spec]) -> None:
    """Adds the counters; a result without them is still a result."""
    from megafuse.bench import counters

    try:
        counters.add(result, specs)
    except counters.NoCounters as error:
        print(f"megafuse: {error}", file=sys.stderr)


def _write(result: Result, parsed: argparse.Namespace) -> None:
    if parsed.json:
        result.write(parsed.json)
        print(f"written: {parsed.json}")
    if parsed.html:
        from megafuse.bench import report

        name = Path(parsed.json or parsed.html).stem
        report.save(report.page([result], [name]), parsed.html)
        print(f"written: {parsed.html}")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected more than 0 seconds, got {text}")
    return value


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text}")
    return int(text)
