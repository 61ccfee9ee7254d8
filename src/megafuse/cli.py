"""The command `megafuse`."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper

_EXAMPLES = """\
examples:
  megafuse doctor            what this machine has, and what will run where
  megafuse doctor --check    the same, and exit status 1 if something is missing
  megafuse demo              separate operations against one fused kernel, timed
  megafuse tutorial          kernel fusion in nine steps, measured here
  megafuse learn             exercises, checked as you solve them
  megafuse bench             eager, torch.compile and fused, side by side
  megafuse report a.json     a page with plots, of what `bench --json` wrote
  megafuse diagnose train.py:step    why it is slow, and what would help
  megafuse fuse a.py:f --shape 64x512     the kernels of a function of yours
  megafuse new clip --from a.py:f    an op from it: header, Python file, test
  megafuse generate MODEL_DIR "Once"    text, one launch for a whole model
  megafuse ops               every op, its formula and its dtypes
  megafuse ops softmax       one op whole: its shapes, its cost, its code
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
    parsed, extra = parser.parse_known_args(arguments)
    if extra:
        command = commands[named] if named else parser
        command.error(_unrecognized(extra, command))
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


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of its commands by name."""
    from megafuse import __version__, fuse_command, new_command
    from megafuse.bench import command, report
    from megafuse.decode import command as generation
    from megafuse.diagnose import command as diagnosis
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

    guided = commands.add_parser("tutorial", help="kernel fusion in nine steps, measured here")
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

    slow = commands.add_parser("diagnose", help="why a function or a model of yours is slow")
    diagnosis.add_arguments(slow)
    slow.set_defaults(run=diagnosis.run)

    fused = commands.add_parser("fuse", help="the kernels that a function of yours becomes")
    fuse_command.add_arguments(fused)
    fused.set_defaults(run=fuse_command.run)

    made = commands.add_parser("new", help="an op from a PyTorch function of yours")
    new_command.add_arguments(made)
    made.set_defaults(run=new_command.run)

    text = commands.add_parser("generate", help="text from a language model, one launch a token")
    generation.add_arguments(text)
    text.set_defaults(run=generation.run)

    kept = commands.add_parser(
        "cache", help="what is compiled: where, how many, how large, last used"
    )
    kept.add_argument("--clear", action="store_true", help="remove them all")
    kept.set_defaults(run=_cache)

    ops = commands.add_parser("ops", help="every op, its formula and its dtypes")
    ops.add_argument("name", nargs="?", metavar="OP", help="one op, whole: its code, its cost")
    ops.add_argument("--markdown", action="store_true", help="as the table in docs/ops.md")
    ops.set_defaults(run=_ops)
    return parser, dict(commands.choices)


def _unrecognized(extra: Sequence[str], command: argparse.ArgumentParser) -> str:
    """unrecognized arguments: --sede: did you mean --seed?"""
    option = extra[0].partition("=")[0]
    close = difflib.get_close_matches(option, list(command._option_string_actions), n=1)
    hint = f": did you mean {close[0]}?" if close else ""
    return f"unrecognized arguments: {option if hint else ' '.join(extra)}{hint}"


def _suggestion(named: str, commands: Iterable[str]) -> str:
    close = difflib.get_close_matches(named, list(commands), n=1)
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
            print(_contents())
    except cache.CacheError as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 1
    return 0


_KINDS = {
    "kernel.so": "CPU kernels",
    "kernel.cubin": "GPU kernels",
    "megafuse_host.so": "host runtimes",
    "kernels.h.gch": "headers",
    "failure.json": "failed builds",
}


def _contents() -> str:
    """Place, size and limit of the cache; then each kind of entry, and when it was used."""
    from megafuse.runtime import cache, cache_limit

    found: dict[str, list[cache_limit.Entry]] = {}
    for entry in cache_limit.listed():
        kind = next((_KINDS[name] for name in entry.files if name in _KINDS), "others")
        found.setdefault(kind, []).append(entry)
    count, total = sum(map(len, found.values())), sum(e.bytes for es in found.values() for e in es)
    limit = cache_limit.limit()
    most = "no limit" if limit is None else f"at most {limit / 1e6:.1f} MB"
    lines = [str(cache.directory()), f"{_entries(count)}, {total / 1e6:.1f} MB ({most})"]
    for kind in (*_KINDS.values(), "others"):
        entries = found.get(kind)
        if entries:
            size = sum(entry.bytes for entry in entries)
            first, last = (f(e.used for e in entries) for f in (min, max))
            lines.append(
                f"  {kind:<13} {len(entries):>6} {size / 1e6:>9.1f} MB   "
                f"used {_day(first)} to {_day(last)}"
            )
    return "\n".join(lines)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _ops(parsed: argparse.Namespace) -> int:
    from megafuse.ops import OPS
    from megafuse.registry.card import call, dtypes, formula

    if parsed.name is not None:
        return _op(parsed.name)
    if parsed.markdown:
        print("| op | computes | gradient of |\n|---|---|---|")
    for op in OPS.values():
        grads = ", ".join(op.autograd.grads) or "none"
        if parsed.markdown:
            print(f"| `{call(op)}` | {formula(op)} | {grads} |")
        else:
            print(f"{call(op)}\n    {formula(op)}\n    {dtypes(op)}\n    gradient of: {grads}")
    return 0


def _op(name: str) -> int:
    from megafuse.bench.refusal import unknown
    from megafuse.ops import OPS
    from megafuse.registry import card

    if name not in OPS:
        print(f"megafuse: {unknown('op', name, OPS)}", file=sys.stderr)
        return 2
    print(card.text(OPS[name]))
    return 0
