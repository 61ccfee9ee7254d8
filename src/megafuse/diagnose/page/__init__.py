"""A diagnosis as one HTML page that needs nothing else: `megafuse diagnose … --html PAGE.html`.

    diagnosis.html ── the headings, and a place for every part
    diagnosis.css  ── how those parts look; the rest is the report's page.css
    diagnosis.js   ── what the diagnosis says: operations, lines, words for them
    *.js           ── draw the parts from it, which the page holds as JSON

Frame, style, charts, tables and tooltips are those of `megafuse report` (bench/report).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megafuse.bench.report import frame
from megafuse.bench.result import plain
from megafuse.diagnose.diagnosis import Diagnosis

# One script in the page: the report's parts first, then a file for each part, the page itself last.
_SHARED = ("format.js", "dom.js", "frame.js", "marks.js", "roofs.js")
_SCRIPTS = (
    *("diagnosis.js", "verdict.js", "findings.js"),
    *("timeline.js", "zoom.js", "roofline.js", "ledger.js", "machine.js", "page.js"),
)


def write(diagnosis: Diagnosis, output: str | Path) -> None:
    """Writes the page; one of that name stays whole until it is. Raises OSError."""
    frame.save(page(diagnosis), output)


def page(diagnosis: Diagnosis) -> str:
    """The whole HTML text."""
    name = diagnosis.record.name.rpartition("/")[2]
    shared = [frame.part(file) for file in _SHARED]
    return frame.framed(
        title=f"megafuse diagnose: {name}",
        heading=f"Why is {name} slow?" if diagnosis.findings else f"{name}: leave it",
        style=frame.part("page.css") + _part("diagnosis.css"),
        script="\n".join([*shared, *(_part(file) for file in _SCRIPTS)]),
        data=_held(diagnosis),
        main=_part("diagnosis.html"),
    )


def _held(diagnosis: Diagnosis) -> dict[str, Any]:
    """What JSON has, packed: of each tensor only what the page shows; tensors and lines once each,
    with operations naming their places; nothing of an operation that is empty. A page of 2,000
    operations is a quarter of the size. diagnosis.js unpacks it."""
    data = diagnosis.to_dict()
    tensors, lines = _Once(), _Once()
    for operation in data["record"]["operations"]:
        for side in ("reads", "writes"):
            shown = ({key: tensor[key] for key in ("shape", "dtype")} for tensor in operation[side])
            operation[side] = [tensors.place(tensor) for tensor in shown]
        operation["where"] = lines.place(operation["where"])
        for name in [n for n in _EMPTY if operation[n] == _EMPTY[n]]:
            del operation[name]
    data["tensors"], data["lines"], data["empty"] = tensors.all, lines.all, _EMPTY
    for finding, held in zip(diagnosis.findings, data["findings"], strict=True):
        held["measured"] = plain(finding.measured(diagnosis.record))
    data["record"]["launches"] = diagnosis.record.launches
    data["record"]["idle"] = diagnosis.record.idle
    return data


# Most operations have most of these: then they are left out.
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("device_start", "device_seconds", "roof_share")),
    **{name: [] for name in ("kernels", "reads", "writes")},
    **dict.fromkeys(("flops", "allocated", "bytes_moved"), 0),
    **dict.fromkeys(("waits", "autocast"), False),
    **{"numbers": "", "phase": "forward"},
}


class _Once:
    """Keeps one of each, in the order of their first use."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        key = repr(value)
        if key not in self._places:
            self._places[key] = len(self.all)
            self.all.append(value)
        return self._places[key]


def _part(name: str) -> str:
    return frame.part(name, __package__)
