"""Checks an exercise in a process of its own, so that whatever the learner's code does, an answer
comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megafuse.learn.exercises import child
from megafuse.learn.exercises.catalog import HERE, Exercise
from megafuse.learn.exercises.findings import Finding, Run, passed
from megafuse.learn.exercises.native import last_line
from megafuse.runtime import cpp, loader
from megafuse.runtime.cache import CacheError

LIMIT = 60.0  # seconds; a check takes about five
_START = 120.0  # for Python and torch to be imported, on a machine that is busy


@dataclass(frozen=True)
class Report:
    """What was found, and what the learner's file printed."""

    findings: list[Finding]
    printed: str = ""

    @property
    def passed(self) -> bool:
        return passed(self.findings)


def check(exercise: Exercise, file: Path, device: str, limit: float = LIMIT) -> Report:
    """Compiles and runs `file`, for `limit` seconds at most, imports not counted."""
    if not exercise.is_python and cpp.find() is None:
        return Report([_no_compiler(exercise)])
    if exercise.starter.suffix in (".py", ".h") and cpp.find() is not None:
        with suppress(CacheError, cpp.CompileError):  # the child says it again
            loader.load()  # compiled here, where the wait is announced and no limit runs
    with tempfile.TemporaryDirectory(prefix="megafuse-learn-") as folder:
        command = [sys.executable, "-m", "megafuse.learn.exercises.child", exercise.name]
        command += [str(file.resolve()), "--device", device, "--limit", str(limit)]
        command += ["--folder", folder]
        try:
            ran = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_environment(),
                encoding="utf-8",
                errors="replace",
                timeout=_START + limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Report([Finding("ends", False, "Python did not start, or could not be stopped")])
        return _read(ran, Path(folder), file.resolve(), limit)


def _environment() -> dict[str, str]:
    """The child finds the megafuse that this process runs, and prints what the learner prints."""
    paths = [str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONUNBUFFERED": "1",  # what was printed before a crash is worth most
        "PYTHONWARNINGS": "ignore",
        # Idle threads that spin take the processor from the code that is timed.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }


def _no_compiler(exercise: Exercise) -> Finding:
    return Finding(
        "compiler",
        False,
        "this exercise is C++, and no C++ compiler is found here",
        "Debian, Ubuntu: apt install g++. Fedora: dnf install gcc-c++. macOS: xcode-select "
        "--install. Windows: use WSL. Or set CXX to one. `megafuse doctor` "
        "tells what it finds. The Python exercises (.py) work without.",
    )


def _read(ran: subprocess.CompletedProcess[str], folder: Path, file: Path, limit: float) -> Report:
    report, faults = folder / child.REPORT, folder / child.FAULTS
    findings, stage, ended = [], "the check began", False
    for line in report.read_text(encoding="utf-8").splitlines() if report.exists() else ():
        told: dict[str, Any] = json.loads(line)
        if "stage" in told:
            stage = told["stage"]
        elif "end" in told:
            ended = True
        else:
            findings.append(_finding(told))
    printed = ran.stdout.strip()
    if not ended:
        fault = faults.read_text(encoding="utf-8", errors="replace") if faults.exists() else ""
        where = _line(fault, file, folder / child.TRAIL)
        findings.append(_end(ran.returncode, fault, where, stage, limit, printed))
    return Report(findings, printed)


def _finding(told: dict[str, Any]) -> Finding:
    run = told.pop("run", None)
    return Finding(**told, run=Run(**run) if run else None)


def _end(status: int, fault: str, where: str, stage: str, limit: float, printed: str) -> Finding:
    """Why the process did not reach its end."""
    if fault.startswith("Timeout"):
        return Finding(
            "ends",
            False,
            f"{where}still running after {limit:.0f} s, so it was stopped",
            f"It happened while {stage}. A loop whose condition never becomes false does that: "
            "look at what it counts, and whether every path through it counts on.",
        )
    if status < 0 or fault.startswith(("Fatal", "Windows fatal")):
        return Finding(
            "ends",
            False,
            f"{where}crashed: {_signal(status, fault)}",
            f"It happened while {stage}. A pointer that points nowhere does that, an array that is "
            "too small, a recursion without end, or an integer division by 0. Compare with the "
            "starter, and change less at a time.",
        )
    last = (printed.splitlines() or [""])[-1][:120]
    return Finding(
        "ends",
        False,
        f"the process ended early, with status {status}",
        f"It happened while {stage}. {last}".rstrip(),
    )


def _line(fault: str, file: Path, trail: Path) -> str:
    """Where it was: Python's stack knows, C++ left its last access."""
    at = re.search(rf'File "{re.escape(str(file))}", line (\d+)', fault)
    if at:
        return f"line {at[1]}: "
    last = last_line(trail)
    return f"after the access in line {last}: " if last else ""


def _signal(status: int, fault: str) -> str:
    if status < 0:
        names = {"SIGSEGV": "segmentation fault", "SIGFPE": "arithmetic error", "SIGABRT": "abort"}
        name = signal.Signals(-status).name
        return f"{names.get(name, name)} ({name})" if name in names else name
    return fault.splitlines()[0].split(":")[-1].strip()
