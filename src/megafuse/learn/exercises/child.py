"""The process that runs a learner's code: python -m megafuse.learn.exercises.child …

It leaves three files: REPORT has one JSON object a line, {"stage": …} before something that may not
return, a finding, and {"end": true}; FAULTS has Python's stack if it crashed or was stopped; TRAIL
the last line of C++ that accessed an array. A timer ends the process even if C++ never returns.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from megafuse.learn.exercises import catalog
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.exercises.work import Work
from megafuse.runtime.cache import CacheError

REPORT, FAULTS, TRAIL = "report", "faults", "trail"


def main() -> int:
    """Everything that the parent learns is in the files that it names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    told = parser.parse_args()
    logging.getLogger("megafuse").setLevel(logging.ERROR)  # else it looks like the learner's
    report_file, faults_file = told.folder / REPORT, told.folder / FAULTS
    with report_file.open("w", encoding="utf-8") as report, faults_file.open("w") as faults:
        faulthandler.enable(faults)
        faulthandler.dump_traceback_later(told.limit, exit=True, file=faults)
        work = Work(
            catalog.find(told.name),
            told.file,
            told.device,
            stage=lambda doing: _tell(report, stage=doing),
            trail=told.folder / TRAIL,
        )
        for finding in findings(work):
            _tell(report, **asdict(finding))
        _tell(report, end=True)
        faulthandler.cancel_dump_traceback_later()
    return 0


def findings(work: Work) -> Iterator[Finding]:
    """What the check finds; whatever the learner's code raises is the last finding."""
    try:
        yield from work.exercise.check(work)
    except Stop as stop:
        yield stop.finding
    except CacheError as error:
        yield Finding("runs", False, "the kernel cache cannot be used", str(error))
    except SyntaxError as error:
        shown = f"    {error.text.strip()}" if error.text else ""
        yield Finding("runs", False, f"line {error.lineno}: {error.msg}", shown)
    except (Exception, SystemExit) as error:
        yield _raised(error, work.path)


def _raised(error: BaseException, path: Path) -> Finding:
    said = f"{type(error).__name__}: {_first_line(error)}".removesuffix(": ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    if own:
        return Finding("runs", False, f"line {own[-1].lineno}: {said}", f"    {own[-1].line}")
    last = frames[-1]
    return Finding(
        "runs",
        False,
        said,
        f"That was raised by {Path(last.filename).name}, line {last.lineno}, on what your code "
        "gave back. If you see no reason for it, it is a fault of the check: please report it.",
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def _tell(report: TextIO, **what: Any) -> None:
    report.write(json.dumps(what) + "\n")
    report.flush()


if __name__ == "__main__":
    sys.exit(main())
