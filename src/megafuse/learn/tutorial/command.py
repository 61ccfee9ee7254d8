"""`megafuse tutorial` and `python tutorial_mega_kernel.py`: options, and the steps in order."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType

import torch

from megafuse.bench import machine
from megafuse.learn import figures
from megafuse.learn.tutorial import (
    budget,
    hierarchy,
    kernel,
    mistake,
    own_function,
    pointwise,
    reduction,
    tolerance,
    when_not,
)
from megafuse.learn.tutorial.screen import Screen, Stopped
from megafuse.learn.tutorial.tour import Tour
from megafuse.learn.verdicts import machine as machine_verdicts
from megafuse.runtime import cache, progress

STEPS: tuple[ModuleType, ...] = (
    hierarchy,
    budget,
    kernel,
    pointwise,
    reduction,
    mistake,
    tolerance,
    when_not,
    own_function,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The tutorial's options, for `megafuse tutorial` and tutorial_mega_kernel.py."""
    parser.add_argument("--step", type=_step, metavar="N", help=f"only this one, 1 to {len(STEPS)}")
    parser.add_argument("--list", action="store_true", help="name the steps and stop")
    parser.add_argument("--no-pause", action="store_true", help="do not wait between the steps")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, less time")
    parser.add_argument("--html", metavar="PAGE", help="write the figures to this page as well")


def _step(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= len(STEPS):
        raise argparse.ArgumentTypeError(
            f"there is no step {text!r}; the steps are 1 to {len(STEPS)}, and --list names them"
        )
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """`python tutorial_mega_kernel.py [--step N] [--no-pause] [--quick]`"""
    parser = argparse.ArgumentParser(description="Kernel fusion, measured step by step.")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(options: argparse.Namespace) -> int:
    """The steps that were asked for. 0, or 1 when something is wrong, or 2 for a missing GPU."""
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without "×" gets "?", no traceback
        sys.stdout.reconfigure(errors="replace")
    progress.show()
    screen = Screen(pause=not options.no_pause)
    if options.list:
        for number, step in enumerate(STEPS, 1):
            screen.console.print(f"{number}  {step.TITLE}")
        return 0
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        screen.say("torch sees no CUDA device here; `megafuse doctor` says why.")
        return 2
    if options.html and not Path(options.html).absolute().parent.is_dir():
        screen.say(f"cannot write {options.html}: there is no such folder. Make it first.")
        return 1
    tour = Tour(screen, device, options.quick, [] if options.html else None)
    try:
        with _threads_that_are_free(tour):
            _steps(tour, options.step)
        return _page(tour, options.html) if options.html else 0
    except Stopped:
        return 0
    except cache.CacheError as error:
        screen.say(f"{error}\nThen run this again.")
        return 1


@contextlib.contextmanager
def _threads_that_are_free(tour: Tour) -> Iterator[None]:
    """On a busy CPU as many threads as processors are left over, at least one.

    Threads wait for the last of them, and one without a processor of its own would be what is
    measured: 8 ms for a copy that takes 1.2, seen on two cores with a load of 2.8.
    """
    load, processors, before = machine.load(), os.cpu_count() or 1, torch.get_num_threads()
    free = max(1, processors - round(load or 0))
    if tour.device == "cpu" and free < before:
        torch.set_num_threads(free)
        tour.screen.say(machine_verdicts.busy(load or 0, processors, free))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _steps(tour: Tour, only: int | None) -> None:
    numbers = range(1, len(STEPS) + 1) if only is None else [only]
    tour.screen.console.print(f"Kernel fusion, measured on {tour.machine}", style="bold")
    for number in numbers:
        step = STEPS[number - 1]
        tour.screen.heading(f"Step {number} of {len(STEPS)}: {step.TITLE}")
        step.run(tour)
        if number != numbers[-1]:
            tour.screen.pause()
    tour.screen.say(_next(only))


def _next(only: int | None) -> str:
    if only is not None and only < len(STEPS):
        return f"Next: --step {only + 1}, {STEPS[only].TITLE}."
    return (
        "Next: `megafuse learn` has exercises on what you just saw, `megafuse diagnose a.py:f` "
        "says why a function of yours is slow, LEARN.md is the map, `megafuse ops` lists what is "
        "fused already, and CONTRIBUTING.md shows how to add an op."
    )


def _page(tour: Tour, path: str) -> int:
    if not tour.figures:
        tour.screen.say(f"This step draws no figure, so {path} was not written.")
        return 0
    try:
        figures.write(path, tour.figures, "Kernel fusion, measured step by step")
    except OSError as error:
        tour.screen.say(f"cannot write {path}: {error}")
        return 1
    number = len(tour.figures)
    tour.screen.say(f"{number} figure{'s' * (number > 1)} in {path}.")
    return 0
