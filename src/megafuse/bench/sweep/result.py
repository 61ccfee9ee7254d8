"""A sweep's results file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from megafuse.bench import machine
from megafuse.bench.result import NotAResult, plain
from megafuse.bench.sweep import judge
from megafuse.bench.sweep.compiling import SHARE
from megafuse.bench.sweep.hunt import Found, Loser
from megafuse.bench.sweep.look import CLEAR, Seen, Timings
from megafuse.runtime import provenance

FORMAT, VERSION = "megafuse-sweep", 1
CLOCKS = {"cold": "device time, cold L2", "wall": "calls in a row"}


@dataclass(frozen=True)
class Sweep:
    """Everything that one sweep found out, as its file holds it."""

    command: str
    date: str
    commit: str
    changed: bool
    machine: dict[str, Any]
    versions: dict[str, str | None]
    seed: int
    seconds: float  # asked for
    seconds_taken: float
    stopped: bool
    rule: dict[str, float]
    clocks: dict[str, str]
    counts: dict[str, int]
    losers: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    cases: list[dict[str, Any]]

    def write(self, path: str | Path) -> None:
        """A case a line: there are thousands."""
        data = plain({"format": FORMAT, "version": VERSION, **asdict(self)})
        lists = ("losers", "failed", "cases")
        told = json.dumps(
            {k: v for k, v in data.items() if k not in lists}, indent=1, ensure_ascii=False
        )
        parts = [told.removesuffix("\n}")]
        for name in lists:
            lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in data[name])
            parts.append(f' "{name}": [\n{lines}\n ]' if lines else f' "{name}": []')
        Path(path).write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")


def read(path: str | Path) -> Sweep:
    """Reads a sweep's file; says what is wrong with one that is not."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise NotAResult(f"{path} is no sweep: `megafuse bench --sweep --json FILE` makes one.")
        if data.pop("version", None) != VERSION:
            raise NotAResult(f"{path} is of another version of the format: sweep again.")
        return Sweep(**data)
    except OSError as error:
        raise NotAResult(f"{path}: {error.strerror or error}") from None
    except (TypeError, json.JSONDecodeError) as error:
        raise NotAResult(f"{path} is damaged: {error}") from None


def of(
    found: Found,
    about: dict[str, Any],
    command: str,
    seed: int,
    seconds: float,
    taken: float,
) -> Sweep:
    """`about` the machine, asked for before the sweep: a device that was lost tells nothing."""
    commit, changed = provenance.commit()
    return Sweep(
        command=command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        commit=commit,
        changed=changed,
        machine=about | {"load": machine.load()},
        versions=provenance.versions(),
        seed=seed,
        seconds=seconds,
        seconds_taken=taken,
        stopped=found.stopped,
        rule={
            "clearly_ahead": CLEAR,
            "confidence": judge.CONFIDENCE,
            "margin": judge.MARGIN,
            "compile_share": SHARE,
            **{f"least_seconds_{clock}": least for clock, least in judge.LEAST.items()},
        },
        clocks=CLOCKS,
        counts={
            "drawn": len(found.seen),
            "skipped": found.count("skipped"),
            "screened": found.count("screened", "careful"),
            "careful": found.count("careful"),
            "with_compile": sum(seen.compiled for seen in found.seen),
            "suspects": found.suspects,
            "behind": len(found.losers),
            "failed": len(found.failed),
        },
        losers=[_loser(each) for each in found.losers],
        failed=[_case(each) for each in found.failed],
        cases=[_case(each) for each in found.seen],
    )


def _loser(loser: Loser) -> dict[str, Any]:
    timings = loser.seen.careful[loser.clock]
    ours, theirs = timings["fused"], timings[loser.other]
    ratio = judge.ratio(theirs, ours)
    return {
        **_described(loser.seen),
        "clock": loser.clock,
        "fused": ours.median,
        "other": theirs.median,
        "whose": loser.other,
        "ratio": ratio.median,
        "interval": [ratio.low, ratio.high],
    }


def _case(seen: Seen) -> dict[str, Any]:
    told = {**_described(seen), "stage": seen.stage}
    if seen.why:
        told["why"] = seen.why
    for name, timings in (("screened", seen.screened), ("careful", seen.careful)):
        if timings:
            told[name] = _figures(timings)
    return told


def _described(seen: Seen) -> dict[str, Any]:
    case = seen.case
    told = {
        "op": case.op,
        "size": case.size,
        "dtype": case.dtype,
        "mode": case.mode,
        "kind": case.kind,
    }
    return told | ({"notes": case.notes} if case.notes else {})


def _figures(timings: Timings) -> dict[str, dict[str, Sequence[float]]]:
    """By clock and contender: median, 10th and 90th percentile, and how many samples."""
    return {
        clock: {name: (t.median, t.low, t.high, t.n) for name, t in by_name.items()}
        for clock, by_name in timings.items()
    }
