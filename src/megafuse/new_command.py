"""The command `megafuse new NAME --from file.py:function`: an op from a PyTorch function."""

from __future__ import annotations

import argparse
import contextlib
import keyword
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  megafuse new soft_clip --from model.py:clip     in a checkout of megafuse
  megafuse new soft_clip --from model.py:clip --into ~/megafuse

It writes three files and changes none:
  src/megafuse/kernels/NAME.h     the functors, forward and backward, as fuse
                                  generates them, for you to refine
  src/megafuse/ops/NAME.py        the op; its reference is your function
  tests/ops/test_NAME.py          its test, and its benchmark row

The function takes tensors, floats and ints, and is one kernel of elements:
`megafuse fuse model.py:clip --shape 64x512 --explain` tells. Any other function
runs with megafuse.fuse as it is. CONTRIBUTING.md says what the files mean.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("name", metavar="NAME", help="of the op: soft_clip")
    parser.add_argument(
        "--from",
        dest="function",
        required=True,
        metavar="FILE.py:FUNCTION",
        help="what it computes, in PyTorch",
    )
    parser.add_argument(
        "--into", default=".", metavar="FOLDER", help="a checkout of megafuse (default: here)"
    )


def run(parsed: argparse.Namespace) -> int:
    """Writes all files, or none and says why (status 2)."""
    from megafuse.compiler.new_op import Refused, files

    try:
        checkout = _checkout(parsed.into)
        _refuse_name(parsed.name, checkout)
        made = files(parsed.name, _function(parsed.function), checkout)
        _write(made, checkout)
    except Refused as error:
        print(f"megafuse: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"written: {path}" for path in made))
    print(_NEXT.format(name=parsed.name), end="")
    return 0


_NEXT = """\
Next:
  python -m pytest tests/ops/test_{name}.py
  python -m pytest tests/contract -k {name}     what every op must do
  megafuse bench {name} --elements 1Ki,16Mi
Then refine the header, draw in `sample` what is usual (draw.row() for a bias),
put what `megafuse ops --markdown` prints into docs/ops.md, and the name into
README.md's table.
"""


def _checkout(folder: str) -> Path:
    from megafuse.compiler.new_op import Refused

    found = Path(folder).expanduser()
    if not (found / "src/megafuse/ops").is_dir() or not (found / "src/megafuse/kernels").is_dir():
        raise Refused(
            f"{folder} is no checkout of megafuse, which has src/megafuse/ops: an op is made in "
            "one. Go there, or name it with --into"
        )
    return found


def _refuse_name(name: str, checkout: Path) -> None:
    import megafuse
    from megafuse.compiler.new_op import Refused

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise Refused(f"{name!r} is no name of an op: expected one like soft_clip")
    there = [
        *checkout.glob(f"src/megafuse/ops/{name}.*"),
        *checkout.glob(f"src/megafuse/kernels/{name}.*"),
        *checkout.glob(f"tests/ops/test_{name}.py"),
    ]
    if there:
        raise Refused(f"there is {there[0].relative_to(checkout)} already: choose another name")
    if name in megafuse.OPS or hasattr(megafuse, name):
        raise Refused(f"megafuse.{name} is something already: choose another name")


def _function(spec: str) -> Callable[..., Any]:
    from megafuse.bench.contenders import Unknown, load
    from megafuse.compiler import Fused
    from megafuse.compiler.new_op import Refused

    where, _, _ = spec.rpartition(":")
    if not where:
        raise Refused(f"--from {spec} names no function: expected file.py:function")
    if where.endswith(".py") and not Path(where).is_file():
        raise Refused(f"--from {spec}: there is no file {where}")
    try:
        found = load(spec)
    except Unknown as error:
        raise Refused(f"--from {error}") from None
    return found.function if isinstance(found, Fused) else found


def _write(made: dict[str, str], checkout: Path) -> None:
    """Every file, or none."""
    from megafuse.compiler.new_op import Refused

    places = [checkout / path for path in made]
    try:
        for place, text in zip(places, made.values(), strict=True):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
    except OSError as error:
        for place in places:
            with contextlib.suppress(OSError):
                place.unlink()
        raise Refused(f"cannot write {error.filename}: {error.strerror}") from None
