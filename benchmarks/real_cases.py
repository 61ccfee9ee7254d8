"""Whole programs before and after what `megafuse diagnose` says of them: examples/real.

python benchmarks/real_cases.py                          those that this machine can run
python benchmarks/real_cases.py --record benchmarks/results/real-cases-x86_64-2-cores.json
python benchmarks/real_cases.py --page                   the tables of docs/diagnose.md
python benchmarks/real_cases.py --check                  only says whether they are up to date

Each program is diagnosed twice, as it was and as it was changed after reading the first diagnosis,
every time by the command, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gallery import RESULTS, ROOT, by_command

from megafuse.bench import machine
from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.text import seconds, times
from megafuse.runtime import provenance

PAGE = ROOT / "docs" / "diagnose.md"
BEGIN, END = "<!-- real -->", "<!-- /real -->"
EXAMPLES = ROOT / "examples"


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
    before, after = (
        by_command(f"{EXAMPLES / path}", ["--seconds", "60"], 900)
        for path in (case.before, case.after)
    )
    return {"name": case.name, "before": _kept(before), "after": _kept(after)}


def _kept(found: Diagnosis) -> dict[str, Any]:
    first = found.findings[0] if found.findings else None
    return {
        "seconds": found.record.seconds,
        "taken": round(found.seconds_taken, 1),
        "sentence": found.verdict.sentence,
        "findings": [finding.name for finding in found.findings],
        "title": first.title if first else "",
        "predicted": found.record.seconds - first.gain if first else None,
        "tried": first.measured(found.record) if first else None,
    }


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
    before, after = row["before"], row["after"]
    now, then = before["seconds"], after["seconds"]
    said = before["sentence"]
    if before["findings"]:
        said = f"**{before['findings'][0]}**: {before['title']}"
        said += f"; predicted {seconds(before['predicted'])}"
        if before["tried"] is not None:
            said += f", tried {seconds(before['tried'])}"
    cells = (
        *(case.name, seconds(now), said.replace("|", "/"), case.change),
        f"{seconds(then)}, {times(now / then)}",
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


def page(check: bool) -> int:
    old = PAGE.read_text(encoding="utf-8")
    before, rest = old.split(BEGIN)
    new = f"{before}{BEGIN}\n{tables()}{END}{rest.split(END)[1]}"
    if check:
        return 0 if new == old else 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="examples/real, before and after.")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="keep what was said")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/diagnose.md")
    parser.add_argument("--check", action="store_true", help="are they up to date?")
    options = parser.parse_args()
    if options.page or options.check:
        return page(options.check)
    return run(options.record)


if __name__ == "__main__":
    sys.exit(main())
