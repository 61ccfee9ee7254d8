"""Separate operations against one fused kernel, timed on this machine and explained.

Every number on screen is measured in this run, or counted: operations and bytes of the separate
way by watching PyTorch's dispatcher, those of the fused way from the op's own cost. The
explanation says only what those numbers show.
"""

from __future__ import annotations

import argparse
import logging
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
    with _compiled() as compiled:
        try:
            is_fused = activate() and build.available(device)
            fused(torch.ones(8, device=device))
        except cache.CacheError as error:
            screen.print(f"{error}\nThen run this again.")
            return 1
    ledger = count(separate, fused, device)
    _say_plan(screen, ledger, is_fused)
    if not _checked(screen, separate, fused, sizes[-1], device):
        return 1
    with screen.status("measuring …") as status:
        results = []
        for size in sizes:
            status.update(f"measuring {amount(size)} floats …")
            results.append(measure(separate, fused, size, device, budget, ledger))
        status.update("measuring the cost of a call …")
        calls = measure_calls(separate, fused, sizes[0], device, budget / 4)
    _show(screen, results, is_fused)
    if is_fused:
        _explain_small(screen, results[0], calls, ledger, device)
        _explain_large(screen, results[-1], ledger, device)
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
        super().__init__()
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
    copy: Timing
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
    """Both ways and a copy of the same size, taking turns."""
    x = torch.randn(size, device=device)
    taken = compare(
        {
            "separate": lambda _: separate(x),
            "fused": lambda _: fused(x),
            "copy": lambda _: x.clone(),
        },
        device=device,
        budget=budget,
    )
    return Result(
        size,
        taken["separate"],
        taken["fused"],
        taken["copy"],
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


def _checked(screen: Console, separate: Way, fused: Way, size: int, device: str) -> bool:
    """Shows the largest error of each way against float64, and whether the fused one is right."""
    x = torch.randn(size, device=device)
    exact = separate(x.double())
    ours, theirs = (float((way(x) - exact).abs().max()) for way in (fused, separate))
    # Twice PyTorch's own error, the contract of every op, and a rounding of the largest results.
    right = ours <= 2 * theirs + 1e-6
    screen.print(
        f"Checked first on {amount(size)} floats, largest error against float64: "
        f"separate {theirs:.1e}, fused {ours:.1e}. " + ("Both are right." if right else "WRONG.")
    )
    screen.print()
    return right


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


def _show_narrow(
    screen: Console, titles: Sequence[str], rows: Sequence[tuple[str, ...]]
) -> None:
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
        text += "Small work is about the number of calls, and fusing makes one of them."
    else:
        text += "So already here the work itself counts more than the calls."
    _paragraph(screen, f"Why at {amount(result.size)}", text)


def _explain_large(screen: Console, result: Result, ledger: Ledger, device: str) -> None:
    ratio = result.fused.median / result.copy.median
    gain = result.gain
    halves = result.separate_bytes / result.fused_bytes
    text = (
        f"The separate way moves {_megabytes(result.separate_bytes)}, because the result of "
        f"{ledger.separate[0]} is written out and read back; the fused way moves "
        f"{_megabytes(result.fused_bytes)}, {halves:.0f}× less, as much as a plain copy. The copy "
        f"took {seconds(result.copy.median)}, fused {seconds(result.fused.median)}, "
        f"{ratio:.2f}× the copy. "
    )
    if ratio <= 1.25:
        text += (
            "So the arithmetic hides behind the memory: fused runs about as fast as memory can "
            f"feed it, and the bytes saved are the speed-up of {gain.median:.2f}×."
        )
    else:
        text += (
            f"So memory alone does not explain the {gain.median:.2f}×: the processor also has "
            "instructions to get through, and fewer passes and fewer instructions both count. "
            "This demo does not measure them apart."
        )
    if gain.high < 1.0:
        text += " Here fusing lost; that would be a bug worth reporting."
    _paragraph(screen, f"Why at {amount(result.size)}", text)


def _explain_reference(screen: Console) -> None:
    _paragraph(
        screen,
        "Why no difference",
        "Both columns are the same code. Fused kernels could not be built on this machine, so "
        "megafuse.gelu_scale ran its PyTorch reference: right results, no speed-up, and what "
        "differs in the table is noise. `megafuse doctor` says what is missing and how to get it.",
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
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value * 1e9:.0f} ns"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"
