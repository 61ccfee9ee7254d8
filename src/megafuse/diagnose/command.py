"""The command `megafuse diagnose`."""

from __future__ import annotations

import argparse
import shlex
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megafuse.diagnose.diagnosis import Diagnosis

_EXAMPLES = """\
examples:
  megafuse diagnose train.py:step          a function that needs no arguments
  megafuse diagnose mymodel:Model --input 8x512x768 --dtype bfloat16 \\
      --mode backward                      a module, and its backward
  megafuse diagnose model.py:GPT --input 4x512:int64     indices
  megafuse diagnose train.py:step --fix    also what to change, as a diff
  megafuse diagnose train.py:step --json a.json --html a.html

The most important finding is the first. Predicted is what the change would
bring by bytes, FLOPs and launches; tried is what it brought here.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("callable", metavar="FILE.py:NAME", help="or package.module:name")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="a tensor argument, again for each in order: 8x512x768, or 8x512:int64",
    )
    parser.add_argument("--dtype", default="float32", help="of inputs and of a module")
    parser.add_argument(
        "--mode", choices=("forward", "backward"), default="forward", help="backward: both"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: where its tensors are")
    parser.add_argument(
        "--try",
        dest="attempt",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="make the changes that megafuse can make, check and time them (default: the first)",
    )
    parser.add_argument("--fix", action="store_true", help="print changes as a diff, where short")
    parser.add_argument("--json", metavar="FILE", help="write everything to FILE")
    parser.add_argument("--html", metavar="FILE", help="write a page with a timeline to FILE")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="that the calls may take (default 30)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Prints the diagnosis; status 2 where there is none, 1 where the callable failed."""
    from megafuse.bench.refusal import Refused as Unwritable
    from megafuse.bench.refusal import unwritable
    from megafuse.diagnose.limit import TookTooLong
    from megafuse.diagnose.subject import Refused

    try:
        unwritable(parsed.json, parsed.html)
        found = _diagnosed(parsed)
    except (Refused, Unwritable, TookTooLong) as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("megafuse: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        _tell(parsed.callable, error)
        return 1
    print(found)
    if parsed.fix:
        _print_fixes(found)
    if parsed.json:
        found.write(parsed.json)
        print(f"written: {parsed.json}")
    if parsed.html:
        from megafuse.diagnose import page

        page.write(found, parsed.html)
        print(f"written: {parsed.html}")
    return 0


def _diagnosed(parsed: argparse.Namespace) -> Diagnosis:
    import torch

    from megafuse.diagnose import api, arguments
    from megafuse.diagnose.subject import Refused, subject

    if parsed.device == "cuda" and not torch.cuda.is_available():
        raise Refused("--device cuda: there is no CUDA device here; `megafuse doctor` says why")
    if not parsed.seconds > 0:
        raise Refused(f"--seconds {parsed.seconds:g}: expected more than 0")
    function = arguments.loaded(parsed.callable)
    device = parsed.device or ("cuda" if parsed.input and torch.cuda.is_available() else "cpu")
    if parsed.input or parsed.device:
        function = arguments.placed(function, parsed.dtype, device)
    args = arguments.inputs(function, parsed.input, parsed.dtype, device)
    what = subject(function, args, {}, parsed.mode, parsed.device, parsed.callable)
    found = api.of(what, parsed.seconds, parsed.attempt, or_exit=True)
    found.command = shlex.join(["megafuse", "diagnose", *sys.argv[2:]])
    return found


def _tell(name: str, error: Exception) -> None:
    """The user's own traceback, without the frames of ours."""
    from megafuse.diagnose.frames import is_users

    print(f"megafuse: {name} raised {type(error).__name__}: {error}", file=sys.stderr)
    frames = traceback.extract_tb(error.__traceback__)
    for line in traceback.format_list([f for f in frames if is_users(f.filename)]):
        print(line, end="", file=sys.stderr)


def _print_fixes(found: Diagnosis) -> None:
    fixes = [finding for finding in found.findings if finding.fix]
    if not fixes:
        print("\nno finding here is a change of a line or two")
    for finding in fixes:
        print(f"\n{finding.name}:\n{finding.fix}", end="")
