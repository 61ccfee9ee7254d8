"""python -m megafuse.compiler.fuzz --programs N --seed S [--device cpu|cuda] [--seconds T]"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

from megafuse.compiler.fuzz.child import Child
from megafuse.compiler.fuzz.grammar import generate
from megafuse.compiler.fuzz.report import Finding, summary, test_case
from megafuse.compiler.fuzz.shrink import shrunk
from megafuse.compiler.fuzz.trial import Outcome


def main(words: list[str] | None = None) -> int:
    warnings.simplefilter("ignore")
    asked = _parsed(words)
    started = time.monotonic()
    child = Child(asked.device)
    outcomes: list[Outcome] = []
    shown: set[str] = set()
    for index in range(asked.first, asked.first + asked.programs):
        if asked.seconds and time.monotonic() - started > asked.seconds:
            break
        outcome = child.generated(asked.seed, index)
        outcomes.append(outcome)
        if outcome.is_finding:
            _show(asked, index, outcome, child, shown)
    child.close()
    print(summary(outcomes))
    return int(any(o.is_finding for o in outcomes))


def _parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m megafuse.compiler.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first program's number")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="stop after so many")
    parser.add_argument(
        "--no-shrink", action="store_true", help="show failing programs as they are"
    )
    return parser.parse_args(words)


def _show(
    asked: argparse.Namespace, index: int, outcome: Outcome, child: Child, shown: set[str]
) -> None:
    program = generate(asked.seed, index)
    print(f"---- program {index} of seed {asked.seed}: {outcome.verdict}: {outcome.message}")
    if not asked.no_shrink:
        program = shrunk(program, outcome, child.trial)
    case = test_case(Finding(index, program, outcome))
    if case not in shown:
        print(case, flush=True)
    shown.add(case)


if __name__ == "__main__":
    sys.exit(main())
