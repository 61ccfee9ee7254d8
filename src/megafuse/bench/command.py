"""The command `megafuse bench`."""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from megafuse.bench.result import CLOCKS, Entry, Result, Row

if TYPE_CHECKING:  # imported when used: `megafuse --help` should not wait for all of it
    import torch

    from megafuse.bench.job import Job, Mode
    from megafuse.bench.suites import Spec

_SIZE = re.compile(r"(\d+)(Ki|Mi|Gi|K|M|G)?")
_MOST = 1 << 60
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_MODES: dict[str, Mode] = {
    "forward": "forward",
    "grad": "forward, grad",
    "backward": "forward+backward",
}
_EXAMPLES = """\
examples:
  megafuse bench                          the quick suite, on this machine
  megafuse bench --suite seeds            every size that the project records
  megafuse bench --json a.json --html a.html      also a file, and a page
  megafuse bench swiglu --dtype bfloat16 --elements 1Mi,16Mi --mode backward
  megafuse bench gelu_scale --shape 64x1024 --against eager,mine.py:gelu

A contender is checked before it is timed: one whose result is wrong shows its
error and no time.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("ops", nargs="*", metavar="OP", help="ops to measure (see megafuse ops)")
    parser.add_argument(
        "--suite", help="quick (the default without OP), seeds or all; with OP: of it, these ops"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--dtype", help="float32 (default), bfloat16, float16, float64; a,b,…")
    parser.add_argument("--shape", help="such as 4096x1024; a,b,…")
    parser.add_argument("--elements", help="instead of a shape: 1Mi (default), 500K, …; a,b,…")
    parser.add_argument("--mode", help="forward (default), grad, backward, all; a,b,…")
    parser.add_argument(
        "--against",
        help="eager, compile, compile-max, compile-graphs, liger, module:function; a,b,…",
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
    parser.add_argument("--json", metavar="FILE", help="write all numbers to FILE")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots to FILE")


class Refused(ValueError):
    """The options do not make sense; the message says which and what would."""


def run(parsed: argparse.Namespace) -> int:
    """Measures and prints.

    Exit status 1: an op of ours was wrong; 2: nothing was measured; 130: stopped with Ctrl-C, after
    which what was measured is printed and written all the same.
    """
    from megafuse.bench import counters
    from megafuse.bench import run as runner
    from megafuse.bench.contenders import Unknown
    from megafuse.bench.row import Effort
    from megafuse.bench.suites import by_mode
    from megafuse.runtime.cache import CacheError

    try:
        device = _device(parsed.device)
        specs = by_mode(_specs(parsed, device))
        jobs = runner.jobs_of(specs, device)
        if not jobs:
            raise Refused(f"the suite {_suite(parsed)} has no rows of {', '.join(parsed.ops)}")
        if parsed.counters and counters.available():
            raise Refused(str(counters.available()))
        for path in filter(None, (parsed.json, parsed.html)):
            _writable(path)
    except (Refused, Unknown) as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    screen = _Screen(jobs, parsed.clock)
    effort = Effort(parsed.budget or (0.6 if _is_quick(parsed) else 1.0), parsed.visits or 3)
    try:
        result = runner.run(
            jobs,
            suite=_suite(parsed),
            command=shlex.join(["megafuse", *_typed(parsed)]),
            effort=effort,
            watcher=runner.Watcher(screen.visiting, screen.doing, screen.finished),
            measure_roofs=parsed.measure_roofs,
        )
        if _suite(parsed) == "seeds" and not result.stopped:
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
    _write(result, parsed)
    if parsed.counters and not result.stopped:
        print("reading the GPU's counters: ncu runs every row once more", flush=True)
        _count(result, specs)
        _write(result, parsed)
    if result.stopped:
        return 130
    return int(any(row.entries[0].error for row in result.rows))


def _first_error(result: Result) -> str:
    row = result.rows[0]
    return f"{row.op}, {'×'.join(map(str, row.shape))}: {row.entries[0].error}"


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


# ---- what to measure


def _specs(parsed: argparse.Namespace, device: str) -> list[Spec]:
    from megafuse.bench.suites import SUITES
    from megafuse.ops import OPS

    unknown = [name for name in parsed.ops if name not in OPS]
    if unknown:
        raise Refused(f"there is no op {unknown[0]!r}; there are {', '.join(OPS)}")
    name, described = _suite(parsed), _described(parsed)
    if name:
        if name not in SUITES:
            raise Refused(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
        if described:
            raise Refused(f"a suite fixes its rows: leave out --{described[0]}, or --suite")
        found = [s for s in SUITES[name](device) if not parsed.ops or s.op in parsed.ops]
        if parsed.against:
            found = [replace(s, against=tuple(_split("against", parsed.against))) for s in found]
        return list(found)
    return list(_own_rows(parsed, device))


def _own_rows(parsed: argparse.Namespace, device: str) -> list[Spec]:
    from megafuse.bench.contenders import installed_others
    from megafuse.bench.suites import Spec, default_against, modes, shape_of
    from megafuse.ops import OPS

    if parsed.shape and parsed.elements:
        raise Refused("give --shape or --elements, not both")
    if parsed.shape:
        shapes = [_shape(text) for text in _split("shape", parsed.shape)]
    else:
        shapes = [
            shape_of(_elements(text)) for text in _split("elements", parsed.elements or "1Mi")
        ]
    rows: list[Spec] = []
    for name in parsed.ops or list(OPS):
        op = OPS[name]
        wanted = _modes(parsed.mode or "forward")
        having = modes(op, wanted)
        if not having:
            raise Refused(f"{name} has no gradient: only --mode forward can be measured")
        against = (
            tuple(_split("against", parsed.against))
            if parsed.against
            else (
                *default_against(device),
                *installed_others(name),
            )
        )
        rows += [
            Spec(name, mode, dtype, shape, against)
            for mode in having
            for dtype in _dtypes(parsed.dtype or "float32")
            for shape in shapes
        ]
    return rows


def _device(wanted: str | None) -> str:
    import torch

    if wanted == "cuda" and not torch.cuda.is_available():
        raise Refused("torch sees no CUDA device here; `megafuse doctor` says why")
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def _described(parsed: argparse.Namespace) -> list[str]:
    """Options that say which rows to measure."""
    return [o for o in ("dtype", "shape", "elements", "mode") if getattr(parsed, o) is not None]


def _suite(parsed: argparse.Namespace) -> str:
    return parsed.suite or ("" if parsed.ops or _described(parsed) else "quick")


def _is_quick(parsed: argparse.Namespace) -> bool:
    return _suite(parsed) == "quick"


def _dtypes(text: str) -> list[torch.dtype]:
    import torch

    known = ("float32", "bfloat16", "float16", "float64")
    for name in _split("dtype", text):
        if name not in known:
            raise Refused(f"--dtype {name}: expected one of {', '.join(known)}")
    return [getattr(torch, name) for name in _split("dtype", text)]


def _modes(text: str) -> list[Mode]:
    if text == "all":
        return list(_MODES.values())
    for name in _split("mode", text):
        if name not in _MODES:
            raise Refused(f"--mode {name}: expected one of {', '.join(_MODES)}, all")
    return [_MODES[name] for name in _split("mode", text)]


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split("x"))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise Refused(f"--shape {text}: expected sizes with x between them, such as 4096x1024")
    if math.prod(sizes) > _MOST:
        raise Refused(f"--shape {text}: more elements than can be counted")
    return sizes


def _elements(text: str) -> int:
    told = _SIZE.fullmatch(text)
    if told is None or int(told[1]) < 1:
        raise Refused(f"--elements {text}: expected a number, K, M, Ki or Mi after it if you like")
    elements = int(told[1]) * _UNITS[told[2] or ""]
    if elements > _MOST:
        raise Refused(f"--elements {text}: more than can be counted")
    return elements


def _split(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise Refused(f"--{option} {text}: nothing is named")
    return parts


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
        raise argparse.ArgumentTypeError(f"expected more than 0 visits, whole ones, got {text}")
    return int(text)


def _writable(path: str) -> None:
    """Better now than after minutes of measuring."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise Refused(f"{path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise Refused(f"{path} is a folder, expected a file")


def _typed(parsed: argparse.Namespace) -> Sequence[str]:
    """The options again, so that the file says how it was made; not where it was written."""
    typed = ["bench", *parsed.ops]
    for name in ("suite", "device", "dtype", "shape", "elements", "mode", "against", "budget"):
        if getattr(parsed, name) is not None:
            typed += [f"--{name}", str(getattr(parsed, name))]
    typed += ["--visits", str(parsed.visits)] if parsed.visits else []
    flags = ("counters", "measure_roofs")
    return typed + [f"--{name.replace('_', '-')}" for name in flags if getattr(parsed, name)]


# ---- the screen


class _Screen:
    """Rows as they are done, and a line that says what is going on.

    No spinner: its thread would disturb the measurement.
    """

    def __init__(self, jobs: Sequence[Job], clock: str) -> None:
        from megafuse.bench import table

        rows = [_announced(job) for job in jobs]
        self._table = table
        self._few = len(rows) <= 3
        self._summary = table.Summary(rows, clock)
        self._begun = False
        self._where = ""
        self._live = sys.stdout.isatty()

    def visiting(self, visit: int, visits: int, i: int, n: int, job: Job) -> None:
        size = self._table.count(job.elements)
        name = f"{job.name} {job.dtype} {size}"
        self._where = f"[{visit + 1}/{visits}] {i + 1}/{n} {name}"
        if not self._live and i == 0 and not self._few:
            print(f"visit {visit + 1} of {visits}, {n} rows", flush=True)

    def doing(self, what: str) -> None:
        if self._live:
            line = f"{self._where}: {what}" if self._where else what
            print(f"\r{line[:79]:<79}", end="", flush=True)

    def clear(self) -> None:
        if self._live:
            print(f"\r{'':<79}\r", end="", flush=True)

    def finished(self, row: Row) -> None:
        self.clear()
        if self._few:
            return
        if not self._begun:
            self._begun = True
            print("\n".join(self._summary.head()))
        print("\n".join(self._summary.lines(row)), flush=True)

    def end(self, result: Result) -> None:
        self.clear()
        table = self._table
        if self._few:
            print(result)
            return
        print("\n" + "\n".join([*self._summary.legend(), "", table.heading(result)]))
        for what, span in (result.start_up or {}).items():
            print(f"{what}: {table.seconds(span.median)}")
        stopped = ", stopped before the end" if result.stopped else ""
        print(f"{len(result.rows)} rows in {result.seconds_taken:.0f} s{stopped}")


def _announced(job: Job) -> Row:
    """A row with its contenders' names only, so that the table's columns are known."""
    return Row(
        op=job.name,
        mode=job.mode,
        dtype=job.dtype,
        shape=list(job.shape),
        elements=job.elements,
        device=job.device,
        subject=job.contenders[0].name,
        bytes_least=None,
        flops=None,
        roof=None,
        entries=[Entry(c.name, c.about) for c in job.contenders],
    )
