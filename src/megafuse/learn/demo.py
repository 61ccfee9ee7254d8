"""Separate operations against one fused kernel: predicted, timed on this machine, explained.

Every number on screen is measured in this run, or counted: operations and bytes of the separate
way by watching PyTorch's dispatcher, bytes of the fused way from the op's own cost. The prediction
needs no more than those bytes and the time of a copy.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from megafuse.bench import machine
from megafuse.learn import demo_page, explain, measure, terminal
from megafuse.learn.ledger import Ledger, count
from megafuse.learn.measure import Measured, Way
from megafuse.learn.verdicts import demo as verdicts
from megafuse.ops import OPS
from megafuse.registry import activate
from megafuse.runtime import build, cache, progress

SCALE = 1.7
SIZES = (1 << 10, 1 << 15, 1 << 20, 1 << 24)
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
    parser.add_argument("--no-ask", action="store_true", help="do not ask for a guess")
    parser.add_argument(
        "--html", metavar="PAGE", help="also write the figures, and a cold benchmark, to PAGE"
    )


def main(argv: Sequence[str] | None = None, separate: Way = separate, fused: Way = fused) -> int:
    """`python simple_demo.py [--quick] [--device cpu] [--html PAGE]`"""
    parser = argparse.ArgumentParser(description="Separate operations against one fused kernel.")
    add_arguments(parser)
    return run(parser.parse_args(argv), separate, fused)


def run(options: argparse.Namespace, separate: Way = separate, fused: Way = fused) -> int:
    """The whole demo. The exit status is 0, 1 when something is wrong, 2 for what cannot be."""
    terminal.plain_where_needed()
    progress.show()
    screen = Console(highlight=False, markup=False, emoji=False)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        screen.print("torch sees no CUDA device here; `megafuse doctor` says why.")
        return 2
    if options.html and (
        Path(options.html).is_dir() or not Path(options.html).resolve().parent.is_dir()
    ):
        screen.print(f"{options.html} cannot be written: expected a file in a folder that exists.")
        return 2
    asks = not options.no_ask and sys.stdin.isatty() and sys.stdout.isatty()
    try:
        return _Demo(screen, device, options.quick, asks, options.html, separate, fused).run()
    except cache.CacheError as error:
        screen.print(f"{error}\nThen run this again.")
        return 1
    except (KeyboardInterrupt, EOFError):
        screen.print("\nStopped.")
        return 130


@dataclass
class _Demo:
    """One run, step by step."""

    screen: Console
    device: str
    quick: bool
    asks: bool
    page: str | None
    separate: Way
    fused: Way

    def run(self) -> int:
        self.screen.print(f"gelu(x)·{SCALE} on {_machine(self.device)}\n", style="bold")
        load, processors = machine.load(), os.cpu_count() or 1
        self._first_use()
        self._paths()
        self.guess = _ask(self.screen, self.sizes[-1]) if self.asks and self.is_fused else None
        self._predict()
        if not self._check():
            return 1
        self._measure()
        self._table()
        self._bars()
        if load is not None and load > 0.75 * processors:
            self._paragraph("Careful", verdicts.busy(load, processors))
        self._explain()
        if self.page:
            self._write_page(self.page)
        self._next()
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

    def _ledgers(self, size: int) -> dict[str, Ledger]:
        """Both ways' operations and bytes. PyTorch's are counted as it runs them."""
        x = torch.ones(1 << 10, device=self.device)
        scale = size / x.numel()
        theirs, mine = count(lambda: self.separate(x)), count(lambda: self.fused(x))
        least = OPS["gelu_scale"].cost(x, SCALE, "tanh").bytes_moved
        moved = least if self.is_fused else mine.bytes_moved
        return {
            "separate": Ledger(theirs.operations, round(theirs.bytes_moved * scale)),
            self.ours: Ledger(mine.operations, round(moved * scale)),
        }

    def _stops(self) -> dict[str, tuple[str, ...]]:
        """What x passes through on each way: every operation writes its result to memory."""
        theirs = self._ledgers(1)["separate"].operations
        apart = tuple(stop for name in theirs for stop in (name, "memory"))
        together = (", ".join(theirs), "memory")
        return {"separate": apart, self.ours: together if self.is_fused else apart}

    def _paths(self) -> None:
        for name, ledger in self._ledgers(1).items():
            self.screen.print(
                f"{name}: {explain.operations(ledger)}, {ledger.bytes_moved} bytes per float "
                "through memory"
            )
            for line in terminal.path(("x", *self._stops()[name]), self.screen.width):
                drawn = Text(line)
                drawn.highlight_words(["memory"], "bold yellow")
                self.screen.print(drawn)
            self.screen.print()

    def _predict(self) -> None:
        """Times of a copy at every size, and from them what each way's bytes should take."""
        self.copies = {}
        for size in self.sizes:
            self._measuring(f"a copy of {explain.amount(size)} floats")
            self.copies[size] = measure.copy(size, self.device, 0.1 if self.quick else 0.4)
        self._measuring(None)
        size = self.sizes[-1]
        theirs, mine = self._ledgers(size).values()
        self._paragraph(
            "Prediction",
            verdicts.prediction(size, self.copies[size], theirs, mine, self.ours),
        )

    def _predicted(self, size: int) -> Mapping[str, float]:
        """Seconds of each way, at a copy's bytes per second."""
        rate = 8 * size / self.copies[size]
        return {name: ledger.bytes_moved / rate for name, ledger in self._ledgers(size).items()}

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
        budget = 0.2 if self.quick else 3.0  # seconds for each size
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
            self.screen.print(f"{text:<36}", end="\r")

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
        theirs, mine = self._ledgers(result.size).values()
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

    def _bars(self) -> None:
        """The largest size: both ways with their predictions, and the copy that both hang on."""
        last = self.results[-1]
        predicted = self._predicted(last.size)
        shown = [
            terminal.Bar(name, taken, self._beside_bar(taken, predicted[name]))
            for name, taken in (
                ("separate", last.separate.median),
                (self.ours, last.fused.median),
            )
        ]
        shown.append(terminal.Bar("copy", last.clone.median, self._beside_bar(last.clone.median)))
        self.screen.print(f"{explain.amount(last.size)} floats", style="bold")
        for line in terminal.bars(shown, min(self.screen.width, 100)):
            self.screen.print(line.rstrip(), no_wrap=True)
        self.screen.print()

    def _beside_bar(self, taken: float, predicted: float | None = None) -> str:
        text = explain.seconds(taken)
        if self.screen.width < 70:
            return text
        said = f"predicted {explain.seconds(predicted)}" if predicted else ""
        return f"{text}  {said:<18}"

    def _explain(self) -> None:
        first, last = self.results[0], self.results[-1]
        theirs, mine = self._ledgers(last.size).values()
        if not self.is_fused:
            self._paragraph("Why no speed-up", verdicts.REFERENCE)
            return
        big, little = explain.amount(last.size), explain.amount(first.size)
        told = self._predicted(last.size)
        outcome = verdicts.outcome(
            (told["separate"], told[self.ours]),
            (last.separate, last.fused),
            last.gain,
            self.guess,
        )
        self._paragraph("Was it as predicted?", outcome)
        self._paragraph(
            f"Launches, at {little} floats", verdicts.small(self.calls, theirs, self.device)
        )
        self._paragraph(f"Bytes, at {big} floats", verdicts.bytes_moved(last, theirs, mine))
        roof = verdicts.roof(last, theirs, self._in_cache(last.size))
        self._paragraph(f"The roof, at {big} floats", roof)
        self._paragraph("Compiled on first use", _found(self.compiled))

    def _in_cache(self, size: int) -> float | None:
        """Seconds of the fused way, if each float took as long as those of the second size, which
        stay in a core's cache. A GPU is not busy enough with so few."""
        if self.device == "cuda":
            return None
        few = self.results[1]
        each = max(few.fused.median - self.calls.fused_one, 0.0) / few.size
        return each * size

    def _write_page(self, page: str) -> None:
        self._measuring("again, cold, for the page")
        figures = demo_page.figures(
            self.ours,
            {name: ("memory", *stops) for name, stops in self._stops().items()},
            self.results,
            {size: self._ledgers(size) for size in self.sizes},
            {size: self._predicted(size) for size in self.sizes},
            self.device,
        )
        demo_page.write(page, figures, self.sizes, self.device, 0.1 if self.quick else 1.0)
        self._measuring(None)
        self._paragraph("Written", f"{page}: these numbers as figures, and a cold benchmark.")

    def _next(self) -> None:
        self._paragraph(
            "Next",
            "`python tutorial_mega_kernel.py`, 15 minutes: such a kernel, from the naive one to "
            "the one that is shipped. `megafuse learn` has exercises, LEARN.md the whole way. "
            "`megafuse ops` lists what else is fused.",
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


def _ask(screen: Console, size: int) -> float | None:
    """The reader's guess; None where there is none."""
    screen.print(
        f"How many times as fast will the second way be, at {explain.amount(size)} floats?",
        style="bold",
    )
    told = input("Your guess (Enter for none): ").strip().rstrip("x×").replace(",", ".")
    screen.print()
    try:
        guess = float(told)
    except ValueError:
        return None
    return guess if math.isfinite(guess) and guess > 0 else None


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
