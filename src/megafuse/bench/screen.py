"""What `megafuse bench` shows while it measures, and at its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from megafuse.bench import table
from megafuse.bench.job import Job
from megafuse.bench.result import Entry, Result, Row


class Screen:
    """Rows as they are done, and a line that says what is going on.

    No spinner: its thread would disturb the measurement.
    """

    def __init__(self, jobs: Sequence[Job], clock: str) -> None:
        rows = [_announced(job) for job in jobs]
        self._labels = [f"{row.op} {row.dtype} {row.label}" for row in rows]
        self._few = len(rows) <= table.FEW
        self._summary = table.Summary(rows, clock)
        self._begun = False
        self._where = ""
        self._live = sys.stdout.isatty()

    def visiting(self, visit: int, visits: int, i: int, n: int, job: Job) -> None:
        self._where = f"[{visit + 1}/{visits}] {i + 1}/{n} {self._labels[i]}"
        if not self._live and i == 0 and not self._few:
            print(f"visit {visit + 1} of {visits}, {n} rows", flush=True)

    def doing(self, what: str) -> None:
        if self._live:
            where = self._where[: 77 - len(what)]
            line = f"{where}: {what}" if where else what
            print(f"\r{line[:79]:<79}", end="", flush=True)

    def clear(self) -> None:
        if self._live:
            print(f"\r{'':<79}\r", end="", flush=True)

    def finished(self, row: Row) -> None:
        self.clear()
        if self._few:
            return
        if not self._begun:
            self._begun = True
            print("\n".join(self._summary.head()))
        print("\n".join(self._summary.lines(row)), flush=True)

    def end(self, result: Result) -> None:
        self.clear()
        if self._few:
            print(result)
            return
        print("\n" + "\n".join([*self._summary.legend(), "", table.heading(result)]))
        for what, span in (result.start_up or {}).items():
            print(f"{what}: {table.seconds(span.median)}")
        stopped = ", stopped before the end" if result.stopped else ""
        print(f"{len(result.rows)} rows in {result.seconds_taken:.0f} s{stopped}")


def _announced(job: Job) -> Row:
    """A row with its contenders' names only, so that the table's columns are known."""
    return Row(
        op=job.name,
        mode=job.mode,
        dtype=job.dtype,
        shape=list(job.shape),
        widths=list(job.widths),
        choices=job.choices,
        elements=job.elements,
        device=job.device,
        subject=job.contenders[0].name,
        bytes_least=None,
        flops=None,
        roof=None,
        entries=[Entry(c.name, c.about) for c in job.contenders],
    )
