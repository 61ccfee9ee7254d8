"""A run added to what a results file has: a suite of hours is measured in parts.

A contender that is measured again takes the place of what it had. Every entry knows its commit.
"""

from __future__ import annotations

from pathlib import Path

import torch

from megafuse.bench.models.case import DTYPES, MODES
from megafuse.bench.models.contenders import CONTENDERS
from megafuse.bench.models.run import finish
from megafuse.bench.models.zoo import MODELS
from megafuse.bench.refusal import Refused
from megafuse.bench.result import NotAResult, Result, Row, read

_SAME = {"cuda": ("device", "gpu", "torch"), "cpu": ("device", "cpu", "threads", "torch")}


def earlier(path: str, about: dict[str, object]) -> Result | None:
    """What the file has; refused where it is of another machine, torch or suite."""
    if not Path(path).exists():
        return None
    try:
        found = read(path)
    except NotAResult as error:
        raise Refused(f"--add: {error}") from None
    if found.suite != "models":
        raise Refused(f"--add: {path} is of the suite {found.suite or 'none'}, not of models")
    here = {**about, "torch": torch.__version__}
    there = {**found.machine, "torch": found.versions.get("torch")}
    for name in _SAME[str(about["device"])]:
        if there.get(name) != here.get(name):
            raise Refused(
                f"--add: {path} was measured with {name} {there.get(name)}, and this is "
                f"{here.get(name)}"
            )
    return found


def added(before: Result | None, now: Result) -> Result:
    """Both, in the order of the suite; complete when every row has every contender of the file."""
    if before is None:
        return now
    rows = {row.key: row for row in before.rows}
    for row in now.rows:
        rows[row.key] = _together(rows[row.key], row) if row.key in rows else row
    now.rows = sorted(rows.values(), key=_place)
    names = {entry.name for row in now.rows for entry in row.entries}
    now.stopped = now.stopped or any(len(row.entries) < len(names) for row in now.rows)
    now.changed = now.changed or before.changed
    commands = before.command.split("; ")
    now.command = "; ".join(dict.fromkeys([*commands, now.command]))
    now.seconds_taken += before.seconds_taken
    return now


def _place(row: Row) -> tuple[int, ...]:
    """In the suite's order."""
    orders = ((MODELS, row.op), (MODES.values(), row.mode), (DTYPES, row.dtype))
    return tuple(list(known).index(name) for known, name in orders)


def _together(before: Row, now: Row) -> Row:
    measured = {e.name for e in now.entries}
    kept = [e for e in before.entries if e.name not in measured]
    now.entries = sorted([*kept, *now.entries], key=lambda e: list(CONTENDERS).index(e.name))
    old = [w for w in before.warnings if w.partition(":")[0] not in measured]
    now.warnings = [*old, *(w for w in now.warnings if w not in old)]
    finish(now)
    return now
