"""python -m megafuse.compiler.fuzz --programs N --seed S [--first K] [--jobs J] [--device cuda]

Programs K, K + 1, … of seed S; with --modules these are models, by `optimize` or torch.compile, and
not functions. Its last line is JSON, which --record adds to a file."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

from megafuse.compiler.fuzz import record
from megafuse.compiler.fuzz.child import Child
from megafuse.compiler.fuzz.generated import generate
from megafuse.compiler.fuzz.report import Finding, summary, test_case
from megafuse.compiler.fuzz.shrink import shrunk
from megafuse.compiler.fuzz.trial import Outcome


def main(words: list[str] | None = None) -> int:
    warnings.simplefilter("ignore")
    asked = _parsed(words)
    if asked.total:
        print(record.total(asked.total))
        return 0
    started = time.monotonic()
    # Kernels that nobody else needs; the host runtime is in the cache that everybody has.
    with tempfile.TemporaryDirectory(prefix="megafuse-fuzz-") as cache:
        outcomes = Run(asked, cache).outcomes()
    seconds = time.monotonic() - started
    made = record.record(
        asked.seed, asked.first, outcomes, asked.device, asked.every, seconds, asked.modules
    )
    print(summary(outcomes.values()))
    if asked.record:
        if made["changed"]:
            print(f"not added to {asked.record}: commit what is changed in the package first")
        else:
            record.append(asked.record, made)
    print(json.dumps(made))
    return int(bool(made["failed"]))


def _parsed(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m megafuse.compiler.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--modules", action="store_true", help="models in place of functions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first program's number")
    parser.add_argument("--jobs", type=int, default=1, help="programs at the same time")
    parser.add_argument(
        "--every", type=int, default=4, help="one in so many is compiled as for users"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="begin no program after so many")
    parser.add_argument("--record", type=Path, help="a file that the last line is added to")
    parser.add_argument("--total", type=Path, help="adds up a file of such lines, and runs nothing")
    parser.add_argument(
        "--no-shrink", action="store_true", help="show failing programs as they are"
    )
    return parser.parse_args(words)


class Run:
    """A range of programs, begun in order, by as many children as there are jobs."""

    def __init__(self, asked: argparse.Namespace, cache: str) -> None:
        self.asked, self.cache = asked, cache
        self.started = time.monotonic()
        self.numbers = itertools.count(asked.first)
        self.found: dict[int, Outcome] = {}
        self.shown: set[str] = set()
        self.lock = threading.Lock()

    def outcomes(self) -> dict[int, Outcome]:
        jobs = [threading.Thread(target=self._job) for _ in range(self.asked.jobs)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        return self.found

    def _job(self) -> None:
        child = Child(self.asked.device, self.cache, self.asked.jobs)
        try:
            while (number := self._next()) is not None:
                hasty = number % self.asked.every != 0
                outcome = child.generated(self.asked.seed, number, hasty, self.asked.modules)
                if outcome.is_finding:
                    self._show(number, outcome, child)
                with self.lock:
                    self.found[number] = outcome
        finally:
            child.close()

    def _next(self) -> int | None:
        asked = self.asked
        if asked.seconds and time.monotonic() - self.started > asked.seconds:
            return None
        with self.lock:
            number = next(self.numbers)
        return number if number < asked.first + asked.programs else None

    def _show(self, number: int, outcome: Outcome, child: Child) -> None:
        program = generate(self.asked.seed, number, self.asked.modules)
        if not self.asked.no_shrink:
            program = shrunk(program, outcome, child.trial)
        case = test_case(Finding(number, program, outcome))
        with self.lock:
            title = f"program {number} of seed {self.asked.seed}"
            print(f"---- {title}: {outcome.verdict}: {outcome.message}")
            print(case if case not in self.shown else "", flush=True)
            self.shown.add(case)


if __name__ == "__main__":
    sys.exit(main())
