"""Separate operations against one fused kernel, timed on this machine and explained.

Every number on screen is measured in this run, or counted: operations and bytes of the separate
way by watching PyTorch's dispatcher, bytes of the fused way from the op's own cost.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from megafuse.bench import machine
from megafuse.learn import explain, measure
from megafuse.learn.ledger import Ledger, count
from megafuse.learn.measure import Measured, Way
from megafuse.ops import OPS
from megafuse.registry import activate
from megafuse.runtime import build, cache

SCALE = 1.7
SIZES = (1 << 10, 1 << 20, 1 << 24)
QUICK_SIZES = (1 << 10, 1 << 14, 1 << 18)


def separate(x: Tensor) -> Tensor:
    """Two operations: the first one's result goes out to memory and comes back."""
    return F.gelu(x, approximate="tanh") * SCALE


def fused(x: Tensor) -> Tensor:
    """One: the first result stays in a register."""
    scaled: Tensor = OPS["gelu_scale"].fused(x, SCALE)
    return scaled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's options, for `megafuse demo` and simple_demo.py."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, less time")


def main(argv: Sequence[str] | None = None, separate: Way = separate, fused: Way = fused) -> int:
    """`python simple_demo.py [--quick] [--device cpu]`"""
    parser = argparse.ArgumentParser(description="Separate operations against one fused kernel.")
    add_arguments(parser)
    return run(parser.parse_args(argv), separate, fused)


def run(options: argparse.Namespace, separate: Way = separate, fused: Way = fused) -> int:
    """The whole demo. The exit status is 0, 1 when something is wrong, 2 for a missing GPU."""
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without "×" gets "?", no traceback
        sys.stdout.reconfigure(errors="replace")
    screen = Console(highlight=False, markup=False, emoji=False)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        screen.print("torch sees no CUDA device here; `megafuse doctor` says why.")
        return 2
    try:
        return _Demo(screen, device, options.quick, separate, fused).run()
    except cache.CacheError as error:
        screen.print(f"{error}\nThen run this again.")
        return 1


@dataclass
class _Demo:
    """One run, step by step."""

    screen: Console
    device: str
    quick: bool
    separate: Way
    fused: Way

    def run(self) -> int:
        self.screen.print(f"gelu(x)·{SCALE} on {_machine(self.device)}\n", style="bold")
        load, processors = machine.load(), os.cpu_count() or 1
        self._first_use()
        self._plan()
        if not self._check():
            return 1
        self._measure()
        self._table()
        if load is not None and load > 0.75 * processors:
            self._paragraph("Careful", explain.busy(load, processors))
        self._explain()
        return 0

    @property
    def sizes(self) -> Sequence[int]:
        return QUICK_SIZES if self.quick else SIZES

    @property
    def ours(self) -> str:
        """The second column's name: what megafuse really runs here."""
        return "fused" if self.is_fused else "reference"

    def _first_use(self) -> None:
        with _compiled() as self.compiled:
            self.is_fused = activate() and build.available(self.device)
            self.fused(torch.ones(8, device=self.device))

    def _ledgers(self, size: int) -> tuple[Ledger, Ledger]:
        """Both ways' operations and bytes. PyTorch's are counted as it runs them."""
        x = torch.ones(1 << 10, device=self.device)
        scale = size / x.numel()
        theirs, mine = count(lambda: self.separate(x)), count(lambda: self.fused(x))
        least = OPS["gelu_scale"].cost(x, SCALE, "tanh").bytes_moved
        moved = least if self.is_fused else mine.bytes_moved
        return (
            Ledger(theirs.operations, round(theirs.bytes_moved * scale)),
            Ledger(mine.operations, round(moved * scale)),
        )

    def _plan(self) -> None:
        theirs, mine = self._ledgers(1)
        for name, ledger in (("separate", theirs), (self.ours, mine)):
            self.screen.print(
                f"{name:<9}  {explain.listed(ledger.operations)}: {explain.operations(ledger)}, "
                f"{ledger.bytes_moved} bytes per float through memory"
            )
        self.screen.print()

    def _check(self) -> bool:
        size = self.sizes[-1]
        theirs, mine = measure.errors(self.separate, self.fused, size, self.device)
        # Twice PyTorch's own error, the contract of every op, and a rounding of the largest.
        right = mine <= 2 * theirs + 1e-6
        self.screen.print(
            f"Checked first on {explain.amount(size)} floats, largest error against float64: "
            f"separate {theirs:.1e}, {self.ours} {mine:.1e}. "
            + ("Both are right.\n" if right else "That is WRONG.\n")
        )
        return right

    def _measure(self) -> None:
        budget = 0.2 if self.quick else 4.0  # seconds for each size
        self.results: list[Measured] = []
        for size in self.sizes:
            self._measuring(f"{explain.amount(size)} floats")
            self.results.append(
                measure.at_size(self.separate, self.fused, size, self.device, budget)
            )
        self._measuring("the cost of a call")
        size = self.sizes[0]
        self.calls = measure.calls(self.separate, self.fused, size, self.device, budget / 4)
        self._measuring(None)

    def _measuring(self, what: str | None) -> None:
        """A line that the next replaces. No spinner: its thread would disturb the measurement."""
        if self.screen.is_terminal and not self.screen.is_dumb_terminal:
            text = "" if what is None else f"measuring {what} …"
            self.screen.print(f"{text:<30}", end="\r")

    def _table(self) -> None:
        gain = "speed-up" if self.is_fused else "ratio"
        speeds = ("separate GB/s", f"{self.ours} GB/s")
        titles = ("floats", "separate", self.ours, gain, "4 of 5 in", *speeds)
        rows = [self._row(result) for result in self.results]
        (_wide_table if self.screen.width >= 80 else _narrow_table)(self.screen, titles, rows)
        self.screen.print(
            "Median of calls that took turns; four of five ratios lie in the range beside it. "
            "GB/s: bytes moved, by the count above, over time. Each call allocates its results, as "
            "in a model.\n",
            style="dim",
        )

    def _row(self, result: Measured) -> tuple[str, ...]:
        theirs, mine = self._ledgers(result.size)
        gain = result.gain
        return (
            explain.amount(result.size),
            explain.seconds(result.separate.median),
            explain.seconds(result.fused.median),
            f"{gain.median:.2f}×",
            f"{gain.low:.2f}–{gain.high:.2f}",
            f"{theirs.bytes_moved / result.separate.median / 1e9:.1f}",
            f"{mine.bytes_moved / result.fused.median / 1e9:.1f}",
        )

    def _explain(self) -> None:
        first, last = self.results[0], self.results[-1]
        theirs, mine = self._ledgers(last.size)
        if self.is_fused:
            small = explain.small(self.calls, theirs, self.device)
            self._paragraph(f"Why at {explain.amount(first.size)}", small)
            self._paragraph(
                f"Why at {explain.amount(last.size)}", explain.large(last, theirs, mine)
            )
            self._paragraph("Compiled on first use", _found(self.compiled))
        else:
            self._paragraph("Why no speed-up", explain.REFERENCE)
        self._paragraph(
            "Next",
            "`megafuse ops` lists what else is fused, `megafuse doctor` says what runs where on "
            "this machine, CONTRIBUTING.md shows how a fused op is written.",
        )

    def _paragraph(self, title: str, text: str) -> None:
        self.screen.print(title, style="bold")
        self.screen.print(text + "\n")


# ---- what the steps need


def _wide_table(screen: Console, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title.replace(" GB/s", "\nGB/s"), justify="right")
    for row in rows:
        table.add_row(*row)
    screen.print(table)


def _narrow_table(screen: Console, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    for row in rows:
        screen.print(f"{row[0]} {titles[0]}", style="bold")
        for title, value in zip(titles[1:], row[1:], strict=True):
            screen.print(f"  {title:<14} {value}")
    screen.print()


@contextmanager
def _compiled() -> Iterator[list[str]]:
    """Collects the lines about what was compiled inside the block."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("compiled "):
                lines.append(record.getMessage().removeprefix("compiled "))

    handler = Collect()
    log = logging.getLogger("megafuse")
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


def _found(compiled: Sequence[str]) -> str:
    if compiled:
        return f"{'; '.join(compiled)}. The next run finds it in {cache.directory()}."
    return f"Nothing: an earlier run left it in {cache.directory()}."


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"this CPU ({platform.machine()}, {threads} thread{'s' * (threads > 1)})"
