"""The command `megafuse ops`: every op in a few lines, or one of them whole."""

from __future__ import annotations

import argparse
import sys

from megafuse.bench.refusal import unknown
from megafuse.ops import OPS
from megafuse.registry import card


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="OP", help="one op, whole: its code, its cost")
    parser.add_argument("--markdown", action="store_true", help="as the table in docs/ops.md")


def run(parsed: argparse.Namespace) -> int:
    if parsed.name is not None:
        return _op(parsed.name)
    if parsed.markdown:
        print("| op | computes | gradient of |\n|---|---|---|")
    for op in OPS.values():
        grads = ", ".join(op.autograd.grads) or "none"
        if parsed.markdown:
            print(f"| `{card.call(op)}` | {card.formula(op)} | {grads} |")
        else:
            about = (card.formula(op), card.dtypes(op), f"gradient of: {grads}")
            print("\n    ".join((card.call(op), *about)))
    return 0


def _op(name: str) -> int:
    if name not in OPS:
        print(f"megafuse: {unknown('op', name, OPS)}", file=sys.stderr)
        return 2
    print(card.text(OPS[name]))
    return 0
