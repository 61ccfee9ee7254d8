"""What came of a range of programs, as one line of JSON: ranges add up to the 20,000.

benchmarks/results/fuzz-<machine>.jsonl holds such lines, fuzz-modules-<machine>.jsonl those of
models: one for each range that was gone through to its end, with the commit that it was gone
through at.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megafuse.compiler.fuzz.report import general
from megafuse.compiler.fuzz.trial import Outcome
from megafuse.runtime import cpp, provenance


def record(
    seed: int,
    first: int,
    outcomes: Mapping[int, Outcome],
    device: str = "cpu",
    every: int = 1,
    seconds: float = 0.0,
    modules: bool = False,
) -> dict[str, Any]:
    """Of the programs from `first` on, all of them; one in `every` had the users' flags, and the
    `others` this one for optimisation."""
    assert sorted(outcomes) == list(range(first, first + len(outcomes)))
    verdicts = Counter(o.verdict for o in outcomes.values())
    refused: dict[str, list[int]] = {}
    for at, outcome in sorted(outcomes.items()):
        if outcome.verdict == "refused":
            refused.setdefault(general(outcome.message), []).append(at)
    commit, changed = provenance.commit()
    return {
        "modules": modules,
        "seed": seed,
        "first": first,
        "programs": len(outcomes),
        "right": verdicts["right"],
        "refused": refused,
        "invalid": verdicts["invalid"],
        "failed": {
            str(at): f"{o.verdict}: {general(o.message)}"
            for at, o in sorted(outcomes.items())
            if o.is_finding
        },
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "cpu": provenance.cpu_name(),
        "cores": os.cpu_count(),
        "every": every,
        "others": cpp.HASTY if device == "cpu" and every > 1 else "",
        "seconds": round(seconds, 1),
        "commit": commit,
        "changed": changed,
        "versions": provenance.versions(),
    }


def append(file: Path, made: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(made) + "\n")


def total(file: Path) -> str:
    """The programs of a file's ranges, each counted once: as it was judged last."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        made = json.loads(line)
        for at in range(made["first"], made["first"] + made["programs"]):
            last[made["device"], made.get("modules", False), made["seed"], at] = made
    failed = sum(str(at) in made["failed"] for (*_, at), made in last.items())
    refused = sum(
        any(at in numbers for numbers in made["refused"].values())
        for (*_, at), made in last.items()
    )
    commits = dict.fromkeys(made["commit"][:12] for made in last.values())
    return (
        f"{len(last)} programs: {failed} failed, {refused} ({refused / max(len(last), 1):.1%}) "
        f"refused; at {', '.join(commits)}"
    )
