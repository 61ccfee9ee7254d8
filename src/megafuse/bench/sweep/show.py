"""What `megafuse bench --sweep` shows: how far it is, and the table at its end."""

from __future__ import annotations

import sys
import time
from typing import Any

from megafuse.bench import table
from megafuse.bench.sweep.case import Case
from megafuse.bench.sweep.hunt import Found, Loser
from megafuse.bench.sweep.look import Seen
from megafuse.bench.sweep.result import CLOCKS, Sweep

_MODES = {"forward": "fwd", "forward+backward": "fwd+bwd"}
_OP, _SIZE, _OTHER = 19, 17, 15
_EVERY = 30.0  # seconds between two lines where there is no terminal


class Screen:
    """One line that is written over; without a terminal a line now and then."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started = time.perf_counter()
        self._told = self._started
        self._live = sys.stdout.isatty()

    def at(self, found: Found, case: Case, again: str) -> None:
        now = time.perf_counter()
        passed = now - self._started
        if not self._live:
            if now - self._told >= _EVERY:
                self._told = now
                print(f"{passed:.0f} of {self._seconds:.0f} s: {_so_far(found)}", flush=True)
            return
        words = " ".join(filter(None, (case.op, case.size, table.short_dtype(case.dtype), again)))
        line = f"{passed:4.0f}/{self._seconds:.0f} s, {_so_far(found)}: {words}"
        print(f"\r{line[:79]:<79}", end="", flush=True)

    def found(self, loser: Loser) -> None:
        self._above(f"behind: {loser.seen.case.op} {loser.seen.case.size} by {CLOCKS[loser.clock]}")

    def failed(self, seen: Seen) -> None:
        self._above(f"failed: {seen.case.op} {seen.case.size} {seen.case.dtype}: {seen.why}")

    def clear(self) -> None:
        if self._live:
            print(f"\r{'':<79}\r", end="", flush=True)

    def _above(self, text: str) -> None:
        self.clear()
        print(text[: table.WIDTH], flush=True)


def _so_far(found: Found) -> str:
    return f"{len(found.seen)} cases, {len(found.losers)} behind"


def text(sweep: Sweep) -> str:
    """The table of what is behind, by clock, and how much was looked at."""
    lines = []
    for clock, named in CLOCKS.items():
        losers = [each for each in sweep.losers if each["clock"] == clock]
        if losers:
            lines += [*_head(named), *(line for each in losers for line in _lines(each)), ""]
    for each in sweep.failed:
        lines += table.note(f"failed: {each['op']} {each['size']} {each['dtype']}: {each['why']}")
    c = sweep.counts
    lines += table.wrapped(
        f"{c['drawn']} cases in {sweep.seconds_taken:.0f} s, seed {sweep.seed}: {c['screened']} "
        f"screened, {c['careful']} compared carefully, {c['with_compile']} with torch.compile, "
        f"{c['skipped']} skipped. {c['suspects']} behind the first time, "
        f"{c['behind']} the second time too."
    )
    return "\n".join(lines)


def _head(clock: str) -> list[str]:
    cells = f"{'op':<{_OP}} {'shape':<{_SIZE}} {'type':<4} {'mode':<7} {'fused':>7}"
    line = f"{cells} {'best other':>{_OTHER}} ratio"
    return [f"behind, {clock}:", line, "─" * len(line)]


def _lines(each: dict[str, Any]) -> list[str]:
    dtype, mode = table.short_dtype(each["dtype"]), _MODES[each["mode"]]
    other = f"{table.seconds(each['other'])} {each['whose'].replace('compile-dynamic', 'c-dyn')}"
    numbers = f"{dtype:<4} {mode:<7} {table.seconds(each['fused']):>7} {other:>{_OTHER}}"
    numbers += f" {each['ratio']:5.2f}"
    named = f"{each['op'][:_OP]:<{_OP}}"
    notes = table.note(each["notes"]) if each.get("notes") else []
    if len(each["size"]) > _SIZE:
        return [f"{named} {each['size']}", f"{'':<{_OP + _SIZE + 1}} {numbers}", *notes]
    return [f"{named} {each['size']:<{_SIZE}} {numbers}", *notes]
