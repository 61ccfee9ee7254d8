"""A run added to what a results file has: a suite of hours is measured in parts.

A contender that is measured again takes the place of what it had. Every entry knows its commit.
"""

from __future__ import annotations

from pathlib import Path

from megafuse.bench.models.contenders import CONTENDERS
from megafuse.bench.models.run import finish
from megafuse.bench.refusal import Refused
from megafuse.bench.result import NotAResult, Result, Row, read

_SAME = ("device", "gpu", "cpu", "threads")


def earlier(path: str, device: str, about: dict[str, object], torch: str) -> Result | None:
    """What the file has; refused where it is of another machine, torch or suite."""
    if not Path(path).exists():
        return None
    try:
        found = read(path)
    except NotAResult as error:
        raise Refused(f"--add: {error}") from None
    if found.suite != "models":
        raise Refused(f"--add: {path} is of the suite {found.suite}, not of models")
    for name in _SAME:
        if found.machine.get(name) != about.get(name):
            raise Refused(
                f"--add: {path} has {name} {found.machine.get(name)}, here it is {about.get(name)}"
            )
    if found.versions.get("torch") != torch:
        raise Refused(
            f"--add: {path} was measured with torch {found.versions.get('torch')}, this is {torch}"
        )
    return found


def added(before: Result | None, now: Result) -> Result:
    """Both, in the order of the suite; complete when every row has every contender of the file."""
    if before is None:
        return now
    rows = {row.key: row for row in before.rows}
    for row in now.rows:
        rows[row.key] = _together(rows[row.key], row) if row.key in rows else row
    now.rows = list(rows.values())
    names = {entry.name for row in now.rows for entry in row.entries}
    now.stopped = now.stopped or any(len(row.entries) < len(names) for row in now.rows)
    now.changed = now.changed or before.changed
    now.command = (
        f"{before.command}; {now.command}" if now.command not in before.command else before.command
    )
    now.seconds_taken += before.seconds_taken
    return now


def _together(before: Row, now: Row) -> Row:
    measured = {e.name for e in now.entries}
    kept = [e for e in before.entries if e.name not in measured]
    now.entries = sorted([*kept, *now.entries], key=lambda e: list(CONTENDERS).index(e.name))
    old = [w for w in before.warnings if w.partition(":")[0] not in measured]
    now.warnings = [*old, *(w for w in now.warnings if w not in old)]
    finish(now)
    return now
