"""The command `megafuse`."""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megafuse.ops import Op

_EXAMPLES = """\
examples:
  megafuse doctor            what this machine has, and what will run where
  megafuse doctor --check    the same, and exit status 1 if something is missing
  megafuse demo              separate operations against one fused kernel, timed
  megafuse tutorial          kernel fusion in eight steps, measured here
  megafuse learn             exercises, checked as you solve them
  megafuse bench             eager, torch.compile and fused, side by side
  megafuse report a.json     a page with plots, of what `bench --json` wrote
  megafuse ops               every op, its formula and its dtypes
  megafuse cache --clear     remove all compiled kernels
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without "·" gets "?", no traceback
        sys.stdout.reconfigure(errors="replace")
    parser, commands = _parser()
    named = next((a for a in arguments if not a.startswith("-")), None)
    if named is not None and named not in commands:
        print(_suggestion(named, commands), file=sys.stderr)
        return 2
    parsed = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] | None = getattr(parsed, "run", None)
    if run is None:
        parser.print_help()
        return 0
    from megafuse.runtime import progress

    progress.show()
    try:
        status = run(parsed)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `megafuse ops | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the names of its commands."""
    from megafuse import __version__
    from megafuse.bench import command, report
    from megafuse.learn import demo
    from megafuse.learn.exercises import command as exercises
    from megafuse.learn.tutorial import command as tutorial

    parser = argparse.ArgumentParser(
        prog="megafuse",
        description="Many PyTorch operations, one kernel launch.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"megafuse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", title="commands")

    doctor = commands.add_parser("doctor", help="what this machine has, and the fix for the rest")
    doctor.add_argument("--check", action="store_true", help="exit 1 if something is missing")
    doctor.set_defaults(run=_doctor)

    shown = commands.add_parser("demo", help="separate operations against fused, on this machine")
    demo.add_arguments(shown)
    shown.set_defaults(run=demo.run)

    guided = commands.add_parser("tutorial", help="kernel fusion in eight steps, measured here")
    tutorial.add_arguments(guided)
    guided.set_defaults(run=tutorial.run)

    taught = commands.add_parser("learn", help="exercises, checked as you solve them")
    exercises.add_arguments(taught)
    taught.set_defaults(run=exercises.run)

    timed = commands.add_parser("bench", help="eager, torch.compile and fused, side by side")
    command.add_arguments(timed)
    timed.set_defaults(run=command.run)

    page = commands.add_parser("report", help="one HTML page, with plots, from results files")
    report.add_arguments(page)
    page.set_defaults(run=report.run)

    kept = commands.add_parser("cache", help="where compiled kernels are, how many, how large")
    kept.add_argument("--clear", action="store_true", help="remove them all")
    kept.set_defaults(run=_cache)

    ops = commands.add_parser("ops", help="every op, its formula and its dtypes")
    ops.add_argument("--markdown", action="store_true", help="as the table in README.md")
    ops.set_defaults(run=_ops)
    return parser, list(commands.choices)


def _suggestion(named: str, commands: Sequence[str]) -> str:
    close = difflib.get_close_matches(named, commands, n=1)
    hint = f" Did you mean `megafuse {close[0]}`?" if close else ""
    return (
        f"megafuse: there is no command {named!r}.{hint}\n"
        f"Commands: {', '.join(commands)}. `megafuse --help` shows examples."
    )


def _doctor(parsed: argparse.Namespace) -> int:
    from megafuse.doctor import doctor

    report = doctor()
    print(report)
    return 1 if parsed.check and not report.ok else 0


def _cache(parsed: argparse.Namespace) -> int:
    from megafuse.runtime import cache

    try:
        if parsed.clear:
            print(f"removed {_entries(cache.clear())} from {cache.directory()}")
        else:
            entries, size = cache.size()
            print(f"{cache.directory()}\n{_entries(entries)}, {size / 1e6:.1f} MB")
    except cache.CacheError as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 1
    return 0


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _ops(parsed: argparse.Namespace) -> int:
    from megafuse.ops import OPS

    if parsed.markdown:
        print("| op | computes | gradient of |\n|---|---|---|")
    for op in OPS.values():
        grads = ", ".join(op.grads) or "none"
        if parsed.markdown:
            print(f"| `{_call(op)}` | {_formula(op)} | {grads} |")
        else:
            print(f"{_call(op)}\n    {_formula(op)}\n    {_dtypes(op)}\n    gradient of: {grads}")
    return 0


def _call(op: Op) -> str:
    parameters = inspect.signature(op.reference).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return f"{op.name}({', '.join(map(str, bare))})".replace("'", '"')


def _formula(op: Op) -> str:
    """The first line of the op's docstring."""
    return (inspect.getdoc(op.reference) or "").splitlines()[0]


def _dtypes(op: Op) -> str:
    from megafuse.registry.arguments import FLOATS

    text = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
    wider = [a.name for a in op.arguments if a.kind == "any_tensor"]
    text += f"; {', '.join(wider)} also integer or bool" if wider else ""
    return text + (f" → {op.output_dtype}" if op.output_dtype else "")
