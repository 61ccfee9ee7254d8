"""The gallery, examples/slow: what `megafuse diagnose` says of each program, and if it is right.

python benchmarks/gallery.py                          every program that this machine can run
python benchmarks/gallery.py gelu_by_hand fine_add    these
python benchmarks/gallery.py --record benchmarks/results/gallery-nvidia-h200.jsonl
python benchmarks/gallery.py --readme                 the tables of examples/slow/README.md
python benchmarks/gallery.py --check                  only says whether they are up to date

A program says at its end what is to be found: EXPECTED, where a CPU differs EXPECTED_ON_CPU, and in
ALSO what is true of it as well but matters less. "leave it" means that nothing is to be found.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from megafuse.diagnose.diagnosis import Diagnosis
from megafuse.diagnose.finding import Finding
from megafuse.diagnose.text import seconds, times

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "examples" / "slow"
README = GALLERY / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
LEAVE_IT = "leave it"
PROGRAMS = sorted(p.stem for p in GALLERY.glob("*.py"))


# ---- what a program says of itself


def constants(program: str) -> dict[str, Any]:
    """EXPECTED and its like, without running the program."""
    tree = ast.parse((GALLERY / f"{program}.py").read_text(encoding="utf-8"))
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.startswith(("EXPECTED", "ALSO"))
    }


def expected(program: str, on_gpu: bool) -> str:
    said = constants(program)
    return said["EXPECTED"] if on_gpu else said.get("EXPECTED_ON_CPU", said["EXPECTED"])


def runs_here(program: str) -> bool:
    return torch.cuda.is_available() or not program.endswith("_cuda")


# ---- what diagnose says


def diagnosed(program: str, options: Sequence[str] = ()) -> Diagnosis:
    return by_command(f"{GALLERY / program}.py:step", options)


def by_command(what: str, options: Sequence[str] = (), limit: float = 300) -> Diagnosis:
    """As a user does it: the command, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "diagnosis.json"
        command = (sys.executable, "-m", "megafuse", "diagnose", what)
        ran = subprocess.run(
            [*command, "--json", str(written), *options],
            capture_output=True,
            text=True,
            timeout=limit,
            # Idle threads of OpenMP that spin would be what is measured on a machine of few cores.
            env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"{what}: status {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
        return Diagnosis.read(written)


def wrong(program: str, found: Diagnosis) -> str | None:
    """What is not as the program says it should be: another finding first, or a false one."""
    names = [finding.name for finding in found.findings]
    wanted = expected(program, torch.cuda.is_available())
    if wanted == LEAVE_IT:
        said = LEAVE_IT in found.verdict.sentence.lower()
        if names or not found.verdict.leave_it or not said:
            return f"expected to be left, found {names or found.verdict.sentence}"
        return None
    if names[:1] != [wanted]:
        return f"expected {wanted} first, found {names or LEAVE_IT}"
    false = set(names) - {wanted, *constants(program).get("ALSO", ())}
    if false:
        return f"found {', '.join(sorted(false))}, which is not true of it"
    return _misplaced(program, found.findings[0])


def _misplaced(program: str, finding: Finding) -> str | None:
    """The line that is named is one of the program, and its text is that line's."""
    lines = (GALLERY / f"{program}.py").read_text(encoding="utf-8").splitlines()
    where = finding.where
    if Path(where.file).name != f"{program}.py":
        return f"points at {where}"
    if where.text != lines[where.line - 1].strip():
        return f"shows {where.text!r} as line {where.line}"
    return None


# ---- records


def record(program: str, found: Diagnosis) -> dict[str, Any]:
    """What is kept of a diagnosis: a line of the results file."""
    return {
        "program": program,
        "machine": found.machine.name,
        "device": found.machine.device,
        "torch": torch.__version__,
        "date": found.date,
        "right": wrong(program, found) is None,
        "seconds": found.record.seconds,
        "taken": round(found.seconds_taken, 1),
        "sentence": found.verdict.sentence,
        "findings": [
            {
                "name": finding.name,
                "title": finding.title,
                "predicted": found.record.seconds - finding.gain,
                "measured": finding.measured(found.record),
            }
            for finding in found.findings
        ],
    }


def run(programs: Sequence[str], options: Sequence[str], file: Path | None) -> int:
    """Prints a line for each, and how many are right. The status is 0 if all are."""
    lines = []
    for program in programs:
        try:
            found = diagnosed(program, options)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"FAILED {program}: {error}", flush=True)
            continue
        lines.append(record(program, found))
        problem = wrong(program, found)
        told = problem or _first(lines[-1])
        print(f"{'WRONG ' if problem else 'right '} {program}: {told}", flush=True)
    right = sum(line["right"] for line in lines)
    print(f"{right} of {len(programs)} right")
    if file is not None:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        file.write_text(text, encoding="utf-8")
        print(f"written: {file}")
    return 0 if right == len(programs) else 1


def _first(line: dict[str, Any]) -> str:
    if not line["findings"]:
        return LEAVE_IT
    first = line["findings"][0]
    return f"{first['name']}, {gain(line['seconds'], first)}"


def gain(now: float, finding: dict[str, Any]) -> str:
    """19.2 ms → 1.87 ms (10×) predicted, 2.85 ms (6.8×) measured"""
    predicted, measured = finding["predicted"], finding["measured"]
    text = f"{seconds(now)} → {seconds(predicted)} ({times(now / predicted)}) predicted"
    if measured is None:
        return text
    return f"{text}, {seconds(measured)} ({times(now / measured)}) measured"


# ---- the README


def tables() -> str:
    """One for each results file; the program's own words are in its file."""
    parts = []
    for file in sorted(RESULTS.glob("gallery-*.jsonl")):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        right = sum(line["right"] for line in lines)
        first = lines[0]
        parts += [
            f"On {first['machine']}, torch {first['torch']}, {first['date'][:10]}: "
            f"{right} of {len(lines)} right.",
            "",
            "| program | what diagnose says first | what that brings |",
            "|---|---|---|",
            *map(_row, lines),
            "",
        ]
    return "\n".join(parts)


def _row(line: dict[str, Any]) -> str:
    link = f"[{line['program']}.py]({line['program']}.py)"
    mark = "" if line["right"] else " (wrong)"
    if not line["findings"]:
        return f"| {link} | {line['sentence'].replace('|', '/')}{mark} | |"
    first = line["findings"][0]
    said = first["title"].replace("|", "/")
    return f"| {link} | **{first['name']}**: {said}{mark} | {gain(line['seconds'], first)} |"


def fill(page: Path, mark: str, text: str, check: bool) -> int:
    """Puts it between the page's markers; or, to check, returns 1 where something else is there."""
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    old = page.read_text(encoding="utf-8")
    before, rest = old.split(begin)
    new = f"{before}{begin}\n{text}{end}{rest.split(end)[1]}"
    if check:
        return int(new != old)
    page.write_text(new, encoding="utf-8")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="What diagnose says of examples/slow.")
    parser.add_argument("programs", nargs="*", help="default: all that this machine can run")
    parser.add_argument("--record", type=Path, metavar="FILE.jsonl", help="keep what was said")
    parser.add_argument("--readme", action="store_true", help="write the tables of the README")
    parser.add_argument("--check", action="store_true", help="are they up to date?")
    parser.add_argument("--no-try", action="store_true", help="predict only")
    parsed = parser.parse_args()
    if parsed.readme or parsed.check:
        return fill(README, "gallery", tables(), parsed.check)
    unknown = set(parsed.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    chosen = parsed.programs or [p for p in PROGRAMS if runs_here(p)]
    return run(chosen, ["--no-try"] if parsed.no_try else [], parsed.record)


if __name__ == "__main__":
    sys.exit(main())
