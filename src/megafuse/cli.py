"""The command `megafuse`."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper

# A command's module has add_arguments(parser) and run(parsed); only that of the one command that is
# called is imported.
COMMANDS = {
    "doctor": ("doctor", "what this machine has, and the fix for the rest"),
    "demo": ("learn.demo", "separate operations against fused, on this machine"),
    "tutorial": ("learn.tutorial.command", "kernel fusion in nine steps, measured here"),
    "learn": ("learn.exercises.command", "exercises, checked as you solve them"),
    "bench": ("bench.command", "eager, torch.compile and fused, side by side"),
    "report": ("bench.report", "one HTML page, with plots, from results files"),
    "diagnose": ("diagnose.command", "why a function or a model of yours is slow"),
    "fuse": ("fuse_command", "the kernels that a function of yours becomes"),
    "new": ("new_command", "an op from a PyTorch function of yours"),
    "generate": ("decode.command", "text from a language model, one launch a token"),
    "cache": ("cache_command", "what is compiled: where, how many, how large, last used"),
    "ops": ("ops_command", "every op, its formula and its dtypes"),
}

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

Parsers = dict[str, argparse.ArgumentParser]  # by command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without "·" gets "?", no traceback
        sys.stdout.reconfigure(errors="replace")
    named = next((a for a in arguments if not a.startswith("-")), None)
    if named is not None and named not in COMMANDS:
        print(_suggestion(named, COMMANDS), file=sys.stderr)
        return 2
    parser, commands = _parser(named)
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


def _parser(called: str | None) -> tuple[argparse.ArgumentParser, Parsers]:
    """The parser, and those of its commands; the one that is called knows its arguments."""
    from megafuse import __version__

    parser = argparse.ArgumentParser(
        prog="megafuse",
        description="Many PyTorch operations, one kernel launch.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"megafuse {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", title="commands")
    for name, (module, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if name == called:
            found = importlib.import_module(f"megafuse.{module}")
            found.add_arguments(command)
            command.set_defaults(run=found.run)
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
