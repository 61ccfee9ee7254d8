"""A rung's line, typed by the reader and tried at once; filled in where nobody types.

The line goes into the rung's own CUDA source, and that runs on the exercises' emulator, in a
process of its own: whatever was typed, the tutorial goes on.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from megafuse.learn.exercises import tensors
from megafuse.learn.exercises.emulator.faults import Fault
from megafuse.learn.exercises.emulator.run import Counted, Emulated, Request
from megafuse.learn.exercises.findings import Finding, Stop
from megafuse.learn.ladder import launch
from megafuse.learn.pictures import access, rung
from megafuse.learn.tutorial.blanks import Blank
from megafuse.runtime import cpp, progress

if TYPE_CHECKING:
    from megafuse.learn.tutorial.tour import Tour

_TRIES = 3
_LIMIT = 30.0  # seconds
_GAP = "________________"


def fill_in(tour: Tour, blanks: Sequence[Blank], op: str, first: int = 1) -> None:
    """Each rung's line, in order: typed, or shown. The op itself comes last, drawn alone. `first`
    is the number of the first rung."""
    screen = tour.screen
    rungs = "each rung" if len(blanks) > 1 else "the next rung"
    screen.say(
        f"A line of {rungs}'s CUDA source is yours to write. It is tried at once, on an emulator "
        "that watches every access; Enter fills it in, and ? gives the idea again."
        if screen.asks
        else f"The line that makes {rungs}, from its CUDA source:"
    )
    for number, blank in enumerate(blanks, first):
        if screen.asks and cpp.find() is not None:
            _one(tour, number, blank)
        else:
            screen.console.print(f"{number}  {blank.ask}", soft_wrap=False)
            screen.code([blank.line])
        picture(tour, blank)
    drawing = rung.shipped(op)
    screen.say(f"{first + len(blanks)}  megafuse.{op}, the op itself:")
    screen.drawing(rung.text(drawing).splitlines())
    tour.draw(lambda: rung.figure(drawing, f"Rung by rung: megafuse.{op}"))


def _one(tour: Tour, number: int, blank: Blank) -> None:
    screen = tour.screen
    screen.say(f"{number}  {blank.file}.cu")
    screen.code(_around(blank))
    screen.say(blank.ask)
    tries = 0
    while tries < _TRIES and (line := screen.line_of_code()):
        if line == "?":  # to ask is no try
            screen.say(blank.says)
            continue
        tries += 1
        finding = tried(blank, line)
        if finding.ok:
            screen.say(f"Right. {finding.found}.")
            return
        screen.say(f"Not yet: {finding.found}. {finding.says}")
    screen.say("It is:")
    screen.code([blank.line])


def _around(blank: Blank) -> list[str]:
    """Some lines before and after, with a gap in place of the line."""
    lines = launch.source(blank.file, "cuda").splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip() == blank.line)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    return [*lines[max(at - 5, 0) : at], indent + _GAP, *lines[at + 1 : at + 4]]


def tried(blank: Blank, line: str) -> Finding:
    """What the source does with this line in it."""
    if ";" not in line and not line.lstrip().startswith("for"):
        line += ";"
    made = apart(lambda: _checked(blank, line), _LIMIT)
    finding = made or Finding("ends", False, "it did not come to an end", _NO_END)
    if finding.ok:
        return finding
    for pattern, meaning in blank.mistakes.items():
        if re.search(pattern, line):
            return Finding(finding.what, False, finding.found, meaning)
    return finding


def _checked(blank: Blank, line: str) -> Finding:
    arrays = blank.arrays()
    exact = blank.exact(arrays)
    try:
        counted = run(blank, arrays, line)
    except Fault as fault:
        return replace(fault.finding, says=f"{blank.says} {fault.finding.says}")
    except Stop as stop:
        return stop.finding
    result = list(arrays.values())[-1]
    right = tensors.close("result", result, exact, result.dtype, 1e-4, blank.says)
    if not right.ok:
        return right
    number, each = counted.worst("sectors", "requests")
    if each > blank.sectors:
        found = f"{each:.0f} sectors a request, in line {number}"
        return Finding("sectors", False, found, blank.slow)
    return Finding("result", True, right.found)


def run(blank: Blank, arrays: dict[str, Any], line: str) -> Counted:
    """The rung's source with another line in it, on the emulator; a mistake raises Stop."""
    source = launch.source(blank.file, "cuda")
    if blank.line not in source:
        raise ValueError(f"{blank.file}.cu has no line {blank.line!r}")
    text = re.sub(rf"(?m)^(\s*){re.escape(blank.line)}$", lambda m: m[1] + line, source, count=1)
    if blank.above:  # in place of the first line, a comment: so the others keep their numbers
        text = "\n".join([blank.above, *text.splitlines()[1:]])
    with _quietly(), tempfile.TemporaryDirectory(prefix="megafuse-tutorial-") as folder:
        path = Path(folder) / f"{Path(blank.file).name}.cu"
        path.write_text(text, encoding="utf-8")
        return Emulated(path, blank.kernel).run(arrays, blank.launch)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without a line for each try that was compiled."""
    level = progress.logger.level
    progress.logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        progress.logger.setLevel(level)


def picture(tour: Tour, blank: Blank) -> None:
    """What moves, is reused and waits; and which thread touches what with the rung's load: in
    the terminal, and for the page."""
    tour.screen.drawing(rung.text(blank.file).splitlines())
    title = f"Rung by rung: {blank.file}"
    if cpp.find() is None:  # then there is no emulator to watch the load
        tour.draw(lambda: rung.figure(blank.file, title))
        return
    request = load(blank)
    tour.screen.drawing(access.text(request).splitlines())
    tour.draw(lambda: rung.figure(blank.file, title, access.figure(request, title)))


def load(blank: Blank) -> Request:
    """The first request of what is drawn by the first warp, of the source as it is."""
    counted = run(blank, blank.arrays(), blank.line)
    return next(r for r in counted.requests if r.array == blank.drawn and not r.writes)


def apart(call: Callable[[], Finding], limit: float) -> Finding | None:
    """In a process of its own, which may crash or never end: None then."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return call()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def answer() -> None:
        torch.set_num_threads(1)  # the other threads of torch's were not copied with the process
        there.send(call())

    child = context.Process(target=answer, daemon=True)
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(limit) else None
    except EOFError:
        return None
    finally:
        child.kill()
        child.join()


_NO_END = (
    "It crashed, or a loop never ends: look at what its condition asks, and at what every round "
    "changes."
)
