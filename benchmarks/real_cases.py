"""Whole programs before and after what `megafuse diagnose` says of them: examples/real.

python benchmarks/real_cases.py                          those that this machine can run
python benchmarks/real_cases.py --record benchmarks/results/real-cases-x86_64-2-cores.json
python benchmarks/real_cases.py --page                   the tables of docs/diagnose.md
python benchmarks/real_cases.py --check                  only says whether they are up to date

Each program is diagnosed as it was, by the command, and changed as the diagnosis says. Both are
then timed in turns, in one process: a round is one call of each. Times are medians, and the ratio
is the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gallery import RESULTS, ROOT, by_command, fill

from megafuse.bench import machine
from megafuse.diagnose.text import seconds, times
from megafuse.runtime import provenance

PAGE = ROOT / "docs" / "diagnose.md"
EXAMPLES = ROOT / "examples"
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """A program, before and after; `change` is what was done, in words."""

    name: str
    before: str
    after: str
    change: str
    needs_gpu: bool = False


CASES = [
    Case(
        "GPT-2, eager",
        "real/gpt2.py:eager",
        "real/gpt2.py:optimized",
        "`mf.optimize(model)`",
    ),
    Case(
        "GPT-2 under `torch.compile`",
        "real/gpt2.py:compiled",
        "real/gpt2.py:optimized",
        "`mf.optimize(model)`",
    ),
    Case(
        "training on images",
        "real/images.py:before",
        "real/images.py:after",
        "a batch is prepared at once",
    ),
    Case(
        "a CUDA extension",
        "slow/naive_linear_relu_cuda.py:step",
        "real/linear_relu_cuda.py:step",
        "the product is the library's",
        needs_gpu=True,
    ),
]


def measured(case: Case) -> dict[str, Any]:
    found = by_command(f"{EXAMPLES / case.before}", ["--seconds", "60"], 900)
    command = [sys.executable, __file__, "--turns", case.name]
    passive = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=passive)
    first = found.findings[0] if found.findings else None
    return {
        "name": case.name,
        "rounds": json.loads(ran.stdout.splitlines()[-1]),  # seconds of both, round by round
        "diagnosed": found.record.seconds,
        "taken": round(found.seconds_taken, 1),
        "sentence": found.verdict.sentence,
        "findings": [finding.name for finding in found.findings],
        "title": first.title if first else "",
        "predicted": found.record.seconds - first.gain if first else None,
        "tried": first.measured(found.record) if first else None,
    }


def turns(case: Case) -> None:
    """Prints the seconds of each round: before and after."""
    calls = [_loaded(path) for path in (case.before, case.after)]
    for call in calls * 3:
        call()
    rounds = [[_seconds(call) for call in calls] for _ in range(ROUNDS)]
    print(json.dumps(rounds))


def _loaded(path: str) -> Callable[[], object]:
    file, _, function = path.partition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, EXAMPLES / file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.get(spec.name)
    if module is None:
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(module, function)


def _seconds(call: Callable[[], object]) -> float:
    _wait()
    start = time.perf_counter()
    call()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run(file: Path | None) -> int:
    rows = []
    for case in CASES:
        if case.needs_gpu and not torch.cuda.is_available():
            continue
        rows.append(measured(case))
        print(_row(case, rows[-1]), flush=True)
    if file is not None:
        commit, changed = provenance.commit()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        result = {
            "machine": machine.about(device),
            "versions": provenance.versions(),
            "commit": commit + (" and changes" if changed else ""),
            "cases": rows,
        }
        text = json.dumps(result, indent=1, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
    return 0


def _row(case: Case, row: dict[str, Any]) -> str:
    before, after = (statistics.median(each) for each in zip(*row["rounds"], strict=True))
    ratio = statistics.median(one / other for one, other in row["rounds"])
    said = row["sentence"]
    if row["findings"]:
        share = row["predicted"] / row["diagnosed"]
        said = f"**{row['findings'][0]}**: {row['title']}; predicted {times(1 / share)}"
        if row["tried"] is not None:
            said += f", tried {times(row['diagnosed'] / row['tried'])}"
    cells = (
        *(case.name, seconds(before), said.replace("|", "/"), case.change),
        f"{seconds(after)}, {times(ratio)}",
    )
    return "| " + " | ".join(cells) + " |"


def tables() -> str:
    parts = []
    for file in sorted(RESULTS.glob("real-cases-*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        about, versions = result["machine"], result["versions"]
        where = about.get("gpu") or f"{about['cpu']}, {about['threads']} threads"
        by_name = {row["name"]: row for row in result["cases"]}
        parts += [
            f"On {where}, torch {versions['torch']}:",
            "",
            "| program | a call | what diagnose says first | the change | after it |",
            "|---|---:|---|---|---:|",
            *(_row(case, by_name[case.name]) for case in CASES if case.name in by_name),
            "",
        ]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="examples/real, before and after.")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="keep what was said")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/diagnose.md")
    parser.add_argument("--check", action="store_true", help="are they up to date?")
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page or options.check:
        return fill(PAGE, "real", tables(), options.check)
    if options.turns:
        turns(next(case for case in CASES if case.name == options.turns))
        return 0
    return run(options.record)


if __name__ == "__main__":
    sys.exit(main())
