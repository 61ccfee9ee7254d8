"""Separate operations against one fused kernel, timed on this machine and explained.

Every number on screen is measured in this run, or counted: operations and bytes of the separate
way by watching PyTorch's dispatcher, those of the fused way from the op's own cost. The
explanation says only what those numbers show.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from megafuse.bench import Ratio, Timing, compare, speedup
from megafuse.ops import OPS
from megafuse.ops.registry import activate
from megafuse.runtime import build, cache

SCALE = 1.7
SIZES = (1 << 10, 1 << 20, 1 << 24)
QUICK_SIZES = (1 << 10, 1 << 14, 1 << 18)

Way = Callable[[Tensor], Tensor]


def separate(x: Tensor) -> Tensor:
    """Two operations: the first one's result goes out to memory and comes back."""
    return F.gelu(x, approximate="tanh") * SCALE


def fused(x: Tensor) -> Tensor:
    """One: the first result stays in a register."""
    return OPS["gelu_scale"].fused(x, SCALE)


# ---- from the command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's options, for `megafuse demo` and simple_demo.py."""
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, less time")


def run(options: argparse.Namespace, separate: Way = separate, fused: Way = fused) -> int:
    """The whole demo; the exit status is 1 when the two ways disagree."""
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without "×" gets "?", no traceback
        sys.stdout.reconfigure(errors="replace")
    screen = Console(highlight=False, markup=False, emoji=False)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        screen.print("torch sees no CUDA device here; `megafuse doctor` says why.")
        return 2
    sizes, budget = (QUICK_SIZES, 0.2) if options.quick else (SIZES, 4.0)

    screen.print(f"gelu(x)·{SCALE} on {_machine(device)}\n", style="bold")
    busy = _load()
    with _compiled() as compiled:
        try:
            is_fused = activate() and build.available(device)
            fused(torch.ones(8, device=device))
        except cache.CacheError as error:
            screen.print(f"{error}\nThen run this again.")
            return 1
    ours = "fused" if is_fused else "reference"
    ledger = count(separate, fused, device)
    _say_plan(screen, ledger, is_fused)
    if not _checked(screen, separate, fused, sizes[-1], device, ours):
        return 1
    results = []
    for size in sizes:
        _say_measuring(screen, f"{amount(size)} floats")
        results.append(measure(separate, fused, size, device, budget, ledger))
    _say_measuring(screen, "the cost of a call")
    calls = measure_calls(separate, fused, sizes[0], device, budget / 4)
    _say_measuring(screen, None)
    _show(screen, results, is_fused)
    if busy is not None:
        _paragraph(
            screen,
            "Careful",
            f"Other programs were running: a load of {busy:.1f} on {os.cpu_count()} processors "
            "when the demo began. Where two threads of a call wait for each other and for a "
            "processor, times grow at random. Run it again on a quiet machine.",
        )
    if is_fused:
        _explain_small(screen, results[0], calls, ledger, device)
        _explain_large(screen, results[-1], ledger)
    else:
        _explain_reference(screen)
    _say_compiled(screen, compiled, is_fused)
    _paragraph(
        screen,
        "Next",
        "`megafuse ops` lists what else is fused, `megafuse doctor` says what runs where on this "
        "machine, CONTRIBUTING.md shows how a fused op is written.",
    )
    return 0


def main(argv: Sequence[str] | None = None, separate: Way = separate, fused: Way = fused) -> int:
    """`python simple_demo.py [--quick] [--device cpu]`"""
    parser = argparse.ArgumentParser(description="Separate operations against one fused kernel.")
    add_arguments(parser)
    return run(parser.parse_args(argv), separate, fused)


# ---- counting


@dataclass(frozen=True)
class Ledger:
    """What each way does: its operations, and the bytes they move per float."""

    separate: tuple[str, ...]
    separate_bytes: int
    fused: tuple[str, ...]
    fused_bytes: int


class _Watch(TorchDispatchMode):
    """Notes each operation that PyTorch dispatches, and the bytes of the tensors it touches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        touched = [t for t in (*args, out) if isinstance(t, Tensor)]
        self.operations.append(str(func).split(".")[1])
        self.bytes += sum(t.nbytes for t in touched)
        return out


def count(separate: Way, fused: Way, device: str) -> Ledger:
    """Runs each way once under a watch on the dispatcher."""
    x = torch.ones(1024, device=device)
    watched = []
    for way in (separate, fused):
        with _Watch() as watch:
            way(x)
        watched.append(watch)
    least = OPS["gelu_scale"].cost(x, SCALE, "tanh").bytes_moved
    return Ledger(
        tuple(watched[0].operations),
        watched[0].bytes // x.numel(),
        tuple(watched[1].operations),
        least // x.numel(),
    )


# ---- measuring


@dataclass(frozen=True)
class Result:
    """One size: how long each way took, and the bytes it moved."""

    size: int
    separate: Timing
    fused: Timing
    copy: Timing  # into memory that is already there
    clone: Timing  # into fresh memory, as every operation writes its result
    separate_bytes: int
    fused_bytes: int

    @property
    def gain(self) -> Ratio:
        return speedup(self.separate, self.fused)


@dataclass(frozen=True)
class Calls:
    """Back-to-back calls, everything included: on one float, and at the smallest size."""

    separate_one: float
    fused_one: float
    separate_small: float
    fused_small: float


def measure(
    separate: Way, fused: Way, size: int, device: str, budget: float, ledger: Ledger
) -> Result:
    """Both ways and two copies of the same size, taking turns."""
    x = torch.randn(size, device=device)
    there = torch.empty_like(x)
    taken = compare(
        {
            "separate": lambda _: separate(x),
            "fused": lambda _: fused(x),
            "copy": lambda _: there.copy_(x),
            "clone": lambda _: x.clone(),
        },
        device=device,
        budget=budget,
    )
    return Result(
        size,
        taken["separate"],
        taken["fused"],
        taken["copy"],
        taken["clone"],
        ledger.separate_bytes * size,
        ledger.fused_bytes * size,
    )


def measure_calls(separate: Way, fused: Way, size: int, device: str, budget: float) -> Calls:
    """What a call costs when there is next to nothing to compute."""
    one, small = torch.ones(1, device=device), torch.randn(size, device=device)
    taken = compare(
        {
            "separate one": lambda _: separate(one),
            "fused one": lambda _: fused(one),
            "separate small": lambda _: separate(small),
            "fused small": lambda _: fused(small),
        },
        device=device,
        clock="wall",
        budget=budget,
    )
    return Calls(*(timing.median for timing in taken.values()))


@contextmanager
def _compiled() -> Iterator[list[str]]:
    """Collects the lines about what was compiled inside the block."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("compiled"):
                lines.append(record.getMessage().removeprefix("compiled "))

    handler = Collect()
    log = logging.getLogger("megafuse")
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


# ---- telling


def _say_plan(screen: Console, ledger: Ledger, is_fused: bool) -> None:
    names = ", then ".join(ledger.separate)
    screen.print(
        f"separate   {names}: {_operations(ledger.separate)}, "
        f"{ledger.separate_bytes} bytes per float through memory"
    )
    if is_fused:
        screen.print(
            f"fused      {', '.join(ledger.fused)}: {_operations(ledger.fused)}, "
            f"{ledger.fused_bytes} bytes per float through memory"
        )
    else:
        screen.print("reference  megafuse.gelu_scale, which runs plain PyTorch on this machine")
    screen.print()


def _checked(screen: Console, separate: Way, fused: Way, size: int, device: str, name: str) -> bool:
    """Shows the largest error of each way against float64, and whether the fused one is right."""
    x = torch.randn(size, device=device)
    exact = separate(x.double())
    ours, theirs = (float((way(x) - exact).abs().max()) for way in (fused, separate))
    # Twice PyTorch's own error, the contract of every op, and a rounding of the largest results.
    right = ours <= 2 * theirs + 1e-6
    screen.print(
        f"Checked first on {amount(size)} floats, largest error against float64: "
        f"separate {theirs:.1e}, {name} {ours:.1e}. " + ("Both are right." if right else "WRONG.")
    )
    screen.print()
    return right


def _say_measuring(screen: Console, what: str | None) -> None:
    """A line that the next one replaces. No spinner: its thread would disturb what is measured."""
    if screen.is_terminal and not screen.is_dumb_terminal:
        text = "" if what is None else f"measuring {what} …"
        screen.print(f"{text:<30}", end="\r")


def _show(screen: Console, results: Sequence[Result], is_fused: bool) -> None:
    ours = "fused" if is_fused else "reference"
    rows = [
        (
            amount(r.size),
            seconds(r.separate.median),
            seconds(r.fused.median),
            f"{r.gain.median:.2f}×",
            f"{r.gain.low:.2f}–{r.gain.high:.2f}",
            f"{r.separate_bytes / r.separate.median / 1e9:.1f}",
            f"{(r.fused_bytes if is_fused else r.separate_bytes) / r.fused.median / 1e9:.1f}",
        )
        for r in results
    ]
    gain = "speed-up" if is_fused else "same code"
    titles = ("floats", "separate", ours, gain, "middle half", "separate GB/s", f"{ours} GB/s")
    if screen.width < 76:
        _show_narrow(screen, titles, rows)
    else:
        table = Table(header_style="bold")
        for title in titles:
            table.add_column(title, justify="right", no_wrap="GB/s" not in title)
        for row in rows:
            table.add_row(*row)
        screen.print(table)
    screen.print(
        "Median of calls that took turns; half of all speed-ups lie in the middle half. GB/s: "
        "bytes moved, by the count above, over time. Each call allocates its results, as in a "
        "model.\n",
        style="dim",
    )


def _show_narrow(screen: Console, titles: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    for row in rows:
        screen.print(f"{row[0]} {titles[0]}", style="bold")
        for title, value in zip(titles[1:], row[1:], strict=True):
            screen.print(f"  {title:<14} {value}")
    screen.print()


def _explain_small(
    screen: Console, result: Result, calls: Calls, ledger: Ledger, device: str
) -> None:
    share = min(calls.separate_one / calls.separate_small, 1.0)
    text = (
        f"A call on one single float, so on next to no data, takes {seconds(calls.separate_one)} "
        f"separate and {seconds(calls.fused_one)} fused. On {amount(result.size)} floats the "
        f"separate way takes {seconds(calls.separate_small)}: {share:.0%} of it is the price of "
        f"{_operations(ledger.separate)}, whatever their size. "
    )
    if device == "cuda":
        text += (
            "Those are whole calls back to back, launches included; the table has the GPU's own "
            "time. "
        )
    if share >= 0.5:
        text += "Small work is about the number of calls, and fusing makes them one."
    else:
        text += "So already here the work itself counts more than the calls."
    _paragraph(screen, f"Why at {amount(result.size)}", text)


def _explain_large(screen: Console, result: Result, ledger: Ledger) -> None:
    copy, clone = result.copy.median, result.clone.median
    fused, separate = result.fused.median, result.separate.median
    text = (
        f"The separate way moves {_megabytes(result.separate_bytes)}, because the result of "
        f"{ledger.separate[0]} is written out and read back; the fused way moves "
        f"{_megabytes(result.fused_bytes)}, as much as a plain copy. Timed beside them: a copy "
        f"into memory that is already there {seconds(copy)}, a copy into fresh memory "
        f"{seconds(clone)}, fused {seconds(fused)}, separate {seconds(separate)}. "
    )
    if clone > 1.3 * copy:
        text += (
            f"So {seconds(clone - copy)} is the price of fresh memory for one result this large. "
            f"The separate way needs {len(ledger.separate)} such results, the fused way one. "
        )
    text += f"Fused takes {fused / clone:.2f}× the copy into fresh memory: "
    if fused <= 1.25 * clone:
        text += "its arithmetic hides behind the memory. "
    else:
        text += "not memory alone, the processor also has instructions to get through. "
    passes = len(ledger.separate) * clone
    text += (
        f"{len(ledger.separate)} such copies, one for each pass of the separate way, would take "
        f"{seconds(passes)} of its {seconds(separate)}"
    )
    text += "." if passes > 0.85 * separate else "; the rest is not explained by memory."
    if result.gain.high < 1.0:
        text += " Here fusing lost. That is worth a bug report."
    _paragraph(screen, f"Why at {amount(result.size)}", text)


def _explain_reference(screen: Console) -> None:
    _paragraph(
        screen,
        "Why no speed-up",
        "Both columns are the same code. Fused kernels could not be built on this machine, so "
        "megafuse.gelu_scale ran its PyTorch reference: right results, no speed-up. megafuse also "
        "checks its arguments in Python then, which shows at small sizes; anything else that "
        "differs is noise. `megafuse doctor` says what is missing and how to get it.",
    )


def _say_compiled(screen: Console, compiled: Sequence[str], is_fused: bool) -> None:
    if not is_fused:
        return
    if compiled:
        text = f"{'; '.join(compiled)}. The next run finds it in {cache.directory()}."
    else:
        text = f"Nothing: an earlier run left it in {cache.directory()}."
    _paragraph(screen, "Compiled on first use", text)


def _paragraph(screen: Console, title: str, text: str) -> None:
    screen.print(title, style="bold")
    screen.print(text + "\n")


# ---- words


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"this CPU ({platform.machine()}, {threads} thread{'s' * (threads > 1)})"


def _load() -> float | None:
    """Programs that want a processor, over the last minute, where that is most of them."""
    if not hasattr(os, "getloadavg"):  # Windows
        return None
    load = os.getloadavg()[0]
    return load if load > 0.75 * (os.cpu_count() or 1) else None


def _operations(names: Sequence[str]) -> str:
    return "1 operation" if len(names) == 1 else f"{len(names)} operations"


def amount(size: int) -> str:
    """1 K, 16 M: powers of 1024, as memory is counted."""
    for unit, name in ((1 << 20, " M"), (1 << 10, " K")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def seconds(value: float) -> str:
    """Three figures with a unit that suits them."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    unit, name = next((u for u in units if value >= u[0]), units[-1])
    figure = value / unit
    return f"{figure:.{2 if figure < 10 else 1 if figure < 100 else 0}f} {name}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"
