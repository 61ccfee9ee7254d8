"""From cases and contenders to a Result: batch after batch of processes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from megafuse.bench import machine
from megafuse.bench.models import samples
from megafuse.bench.models.case import Case
from megafuse.bench.models.contenders import CONTENDERS, SUBJECT, refused
from megafuse.bench.models.order import REFERENCE, Order
from megafuse.bench.models.schedule import batches
from megafuse.bench.models.worker import Failed, Worker
from megafuse.bench.models.zoo import transformers_version
from megafuse.bench.result import STEP, Entry, Result, Row, Span, Speedup
from megafuse.runtime import loader, provenance


@dataclass(frozen=True)
class Plan:
    """What is asked for. `limit` is seconds that a contender has to prepare, and again to measure;
    `seconds`, when no further batch begins."""

    cases: Sequence[Case]
    contenders: Sequence[str]
    command: str
    jobs: int = 1
    limit: float = 300.0
    budget: float = 2.0
    seconds: float | None = None
    warm: bool = False
    accuracy: bool = True


class Run:
    """One run; `result()` at any time is what is known by then."""

    def __init__(self, plan: Plan, say: Callable[[str], None], done: Callable[[Run], None]) -> None:
        self.plan, self._say, self._done = plan, say, done
        self._begun = time.perf_counter()
        self._entries = {(c, n): _entry(n) for c in plan.cases for n in plan.contenders}
        self._remarks: dict[Case, list[str]] = {case: [] for case in plan.cases}
        self._results: dict[tuple[Case, str], Path] = {}
        self._against: dict[Case, str] = {}
        self._commit, self._changed = provenance.commit()
        self._load = machine.load()
        self._beside = 1  # processes that prepare at the moment
        self.stopped = True

    def all(self) -> None:
        """Measures everything, or until time is up; `done` is called after each batch."""
        loader.load()  # else every process would wait for the first one to compile it
        device = self.plan.cases[0].device
        with tempfile.TemporaryDirectory(
            prefix="megafuse-models-", ignore_cleanup_errors=True
        ) as folder:
            at = Path(folder)
            planned = list(batches(self._orders(at), self.plan.jobs, _memory(device)))
            for number, batch in enumerate(planned, 1):
                if self._time_is_up():
                    self._say(f"time is up: {len(planned) - number + 1} batches are left out")
                    return
                self._say(f"batch {number} of {len(planned)}, {len(batch)} to prepare")
                self._batch(batch, at / str(number))
                self._done(self)
        self.stopped = False

    def _time_is_up(self) -> bool:
        limit = self.plan.seconds
        return limit is not None and time.perf_counter() - self._begun > limit

    # ---- batches

    def _orders(self, folder: Path) -> list[Order]:
        names = [*self.plan.contenders, *([REFERENCE] if self.plan.accuracy else [])]
        found = []
        for number, (name, case) in enumerate((n, c) for n in names for c in self.plan.cases):
            why = refused(name, case.device)
            if why:
                self._entries[case, name].missing[STEP] = why
                continue
            kept = str(folder / f"{number}.pt") if self.plan.accuracy else ""
            cache = str(folder / f"cache-{number}")
            found.append(Order(case, name, self.plan.budget, kept, cache))
        return found

    def _batch(self, batch: Sequence[Order], folder: Path) -> None:
        """All prepare, then each is measured; with `warm`, all prepare once more."""
        folder.mkdir()
        through = self._side_by_side(batch, folder, self._prepared, self._measured)
        again = [
            replace(order, samples="", only_first=True)
            for order in through
            if self.plan.warm and order.contender not in (REFERENCE, "eager")
        ]
        if again:
            self._side_by_side(again, folder, self._prepared_again, lambda _: None)
        for order in batch:  # hundreds of MB each, where a compiler tunes its kernels
            shutil.rmtree(order.cache, ignore_errors=True)
            shutil.rmtree(_inductors(order), ignore_errors=True)

    def _side_by_side(
        self,
        batch: Sequence[Order],
        folder: Path,
        prepare: Callable[[Worker], None],
        measure: Callable[[Worker], None],
    ) -> list[Order]:
        """Those that got through all of it."""
        workers: list[Worker] = []
        through = []
        self._beside = len(batch)
        try:
            for number, order in enumerate(batch):
                log = folder / f"{number}{'-again' if order.only_first else ''}.log"
                workers.append(Worker(order, log, self._environment(order)))
            for worker in [w for w in workers if self._heard(w, prepare)]:
                if self._heard(worker, measure):
                    through.append(worker.order)
                worker.end()  # its memory is for the next
        finally:
            for worker in workers:
                worker.end()
        return through

    def _heard(self, worker: Worker, ask: Callable[[Worker], None]) -> bool:
        """Whether it answered, and no error; else the error is its entry's."""
        try:
            ask(worker)
        except Failed as why:
            worker.end()
            self._failed(worker.order, str(why))
            return False
        return True

    def _environment(self, order: Order) -> dict[str, str]:
        found = {"TORCHINDUCTOR_CACHE_DIR": _inductors(order)}
        if self.plan.jobs > 1:  # each would start a compiler on every core
            threads = max((os.cpu_count() or 1) // self.plan.jobs, 1)
            found["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
        return found

    # ---- answers

    def _prepared(self, worker: Worker) -> None:
        order, told = worker.order, _told(worker.prepared(self.plan.limit), "ready")
        if order.samples:
            self._results[order.case, order.contender] = Path(order.samples)
        if order.contender == REFERENCE:
            self._against[order.case] = told["against"]
            self._say(f"{_words(order)}: done")
            return
        entry = self._entries[order.case, order.contender]
        entry.first_call = told["first"]
        self._say(f"{_words(order)}: first result after {told['first']:.1f} s")
        entry.side_by_side = self._beside
        self._remarks[order.case] += [f"{order.contender}: {line}" for line in told["remarks"]]

    def _measured(self, worker: Worker) -> None:
        order = worker.order
        if order.contender == REFERENCE:
            return
        told = _told(worker.measured(self.plan.limit), "measured")
        entry = self._entries[order.case, order.contender]
        entry.times[STEP] = Span(*told["times"])
        self._say(f"{_words(order)}: {entry.times[STEP].median * 1e3:.3g} ms a step")
        try:
            told |= _told(worker.profiled(self.plan.limit), "profiled")
        except Failed as why:  # the times stand
            entry.missing["launches"] = str(why)
        entry.busy, entry.launches = told.get("busy"), told.get("launches")
        entry.peak_bytes = told.get("peak_bytes")
        entry.reserved_bytes = told.get("reserved_bytes")
        entry.missing |= told.get("missing", {})

    def _prepared_again(self, worker: Worker) -> None:
        order, told = worker.order, _told(worker.prepared(self.plan.limit), "ready")
        self._entries[order.case, order.contender].first_call_warm = told["first"]

    def _failed(self, order: Order, why: str) -> None:
        self._say(f"{_words(order)}: {why}")
        if order.contender == REFERENCE:
            for name in self.plan.contenders:
                self._entries[order.case, name].missing["accuracy"] = why
        elif order.only_first:
            self._entries[order.case, order.contender].missing["first_call_warm"] = why
        elif why.startswith(_SKIPPED):
            entry = self._entries[order.case, order.contender]
            entry.missing[STEP] = why.removeprefix(_SKIPPED)
        else:
            self._entries[order.case, order.contender].error = why

    # ---- what is known

    def result(self) -> Result:
        device = self.plan.cases[0].device
        rows = [self._row(case) for case in self.plan.cases]
        return Result(
            suite="models",
            command=self.plan.command,
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            commit=self._commit,
            changed=self._changed,
            machine=machine.about(device) | machine.float32_products(device) | {"load": self._load},
            versions=provenance.versions() | {"transformers": transformers_version()},
            roofs=None,
            rows=[row for row in rows if row.entries],
            seconds_taken=time.perf_counter() - self._begun,
            stopped=self.stopped,
        )

    def _row(self, case: Case) -> Row:
        row = case.row(SUBJECT)
        found = [self._entries[case, name] for name in self.plan.contenders]
        row.entries = [e for e in found if e.error or e.times or STEP in e.missing]
        for entry in row.entries:
            entry.commit = self._commit
            self._judge(case, entry)
        row.warnings = list(self._remarks[case])
        finish(row)
        return row

    def _judge(self, case: Case, entry: Entry) -> None:
        """Once, when its results and float64's are there."""
        exact = self._results.get((case, REFERENCE))
        if exact is None or (case, entry.name) not in self._results:
            return
        got = self._results.pop((case, entry.name))
        entry.against = self._against[case]
        samples.fill(entry, torch.load(got), torch.load(exact))
        if entry.error:
            entry.times.clear()


def finish(row: Row) -> None:
    """What follows from the entries together: speed-ups, and who is farther off than eager."""
    row.speedups.clear()
    subject, eager = row.entry(row.subject), row.entry("eager")
    for entry in row.entries:
        doubts = samples.doubtful(entry, eager, row.dtype)
        row.warnings += [line for line in doubts if line not in row.warnings]
        if subject is None or entry is subject or not subject.times or not entry.times:
            continue
        row.speedups[entry.name] = {STEP: Speedup.of(entry.times[STEP], subject.times[STEP])}


_SKIPPED = "skipped: "


def _told(answer: dict[str, Any], kind: str) -> dict[str, Any]:
    """The answer; what went wrong in the process is raised."""
    if "skipped" in answer:
        raise Failed(_SKIPPED + answer["skipped"])
    if kind not in answer:
        raise Failed(answer.get("error", "its process gave no answer"))
    found: dict[str, Any] = answer[kind]
    return found


def _inductors(order: Order) -> str:
    """Where torch.compile keeps what it compiled."""
    return f"{order.cache}-inductor"


def _entry(name: str) -> Entry:
    return Entry(name, CONTENDERS[name].about)


def _words(order: Order) -> str:
    case = order.case
    return f"{case.model} {case.dtype} {case.mode}, {order.contender}"


def _memory(device: str) -> float:
    if device != "cuda":
        return float("inf")
    return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
