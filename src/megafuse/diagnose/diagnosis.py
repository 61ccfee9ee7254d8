"""The whole answer: record, machine, findings and verdict; as text, as HTML and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megafuse.bench.result import plain
from megafuse.diagnose.finding import Finding
from megafuse.diagnose.machine import Machine
from megafuse.diagnose.record import Record
from megafuse.diagnose.stored import known

FORMAT, VERSION = "megafuse-diagnosis", 1


class NotADiagnosis(ValueError):
    """The file is not one that `megafuse diagnose --json` wrote."""


@dataclass(frozen=True)
class Verdict:
    """In one word what binds the call, and in a sentence why; `leave_it` if nothing is found."""

    leave_it: bool
    binds: str  # "memory", "compute", "host", "call": where most of the time goes
    roof_share: float  # least time that the roofs allow / the call's time
    sentence: str


@dataclass
class Diagnosis:
    """`str()` of it is for people, at 80 columns; the most important finding is the first."""

    record: Record
    machine: Machine
    verdict: Verdict
    findings: list[Finding] = field(default_factory=list)
    seconds_taken: float = 0.0
    date: str = ""
    command: str = ""

    def __str__(self) -> str:
        from megafuse.diagnose.text import text

        return text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from megafuse.diagnose.notebook import html

        return html(self)

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold; floats with 6 digits."""
        return {"format": FORMAT, "version": VERSION, **plain(self)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Diagnosis:
        """What `to_dict` made; says what is wrong with anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise NotADiagnosis("not a diagnosis: `megafuse diagnose … --json FILE` writes one")
        if data.get("version") != VERSION:
            raise NotADiagnosis(
                f"version {data.get('version')} of the format, this megafuse reads {VERSION}: "
                "diagnose again, or use the megafuse that wrote it"
            )
        try:
            return known(Diagnosis, data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotADiagnosis(f"damaged: {type(error).__name__}: {error}") from None

    def write(self, path: str | Path) -> None:
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | Path) -> Diagnosis:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise NotADiagnosis(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise NotADiagnosis(f"{path} is not JSON: {error}") from None
        try:
            return Diagnosis.from_dict(data)
        except NotADiagnosis as error:
            raise NotADiagnosis(f"{path}: {error}") from None
