"""What `megafuse learn` prints: right at any width, in colour only where there is a terminal."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from megafuse.learn.exercises.catalog import Exercise
from megafuse.learn.exercises.findings import Finding
from megafuse.learn.exercises.folder import Folder
from megafuse.learn.exercises.runner import Report
from megafuse.runtime import cpp

_MARK = {True: ("ok  ", "green"), False: ("FAIL", "bold red"), None: ("    ", "dim")}
_STATE = {"new": ("new", "dim"), "open": ("open", "yellow"), "done": ("done", "green")}
_PRINTED = 20  # lines of the learner's own output


class Screen:
    """A console that wraps paragraphs and leaves code alone."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)

    @property
    def width(self) -> int:
        return min(self.console.width, 100)

    def line(self, text: str = "", style: str = "") -> None:
        """One line as it is."""
        self.console.print(text, style=style, soft_wrap=True)

    def text(self, text: str, style: str = "") -> None:
        """Paragraphs; lines with four spaces in front stay as they are."""
        for block in text.split("\n\n"):
            if block.startswith("    "):
                self.line(block, style or "cyan")
            else:
                words = " ".join(block.split())
                self.line(textwrap.fill(words, self.width, break_on_hyphens=False), style)
            self.line()

    def listing(self, exercises: Sequence[Exercise], folder: Folder) -> None:
        """Number, name, state, and what one learns."""
        self.text(
            "Small tasks with your own hands: each is checked at once, for its result and for the "
            f"bytes that it moves. Your files go into {_shown(folder.path)}."
        )
        for exercise in exercises:
            word, style = _STATE[folder.state(exercise)]
            head = f"{exercise.number:2}  {exercise.name:<14} "
            self.console.print(head, style="bold", end="")
            self.console.print(f"{word:<4} ", style=style, end="")
            self.console.print(f"{exercise.language:<6} ", style="dim", end="")
            self.line(exercise.title)
            indent = " " * 4
            about = textwrap.fill(
                exercise.learn, self.width, initial_indent=indent, subsequent_indent=indent
            )
            self.line(about, "dim")
        done = sum(folder.state(exercise) == "done" for exercise in exercises)
        self.line()
        self.text(f"{done} of {len(exercises)} done. {_advice(exercises, folder)}")
        if cpp.find() is None:
            compiled = ", ".join(str(e.number) for e in exercises if not e.is_python)
            self.text(
                f"No C++ compiler is found here, and {compiled} are C++. `megafuse doctor` says "
                "how to get one; the others work without."
            )

    def task(self, exercise: Exercise, file: Path, begun: bool) -> None:
        self.line(f"{exercise.number}. {exercise.title}", "bold")
        self.line()
        self.drawing(exercise.picture)
        self.text(exercise.task)
        self.line(f"Your file  {_shown(file)}" + ("" if begun else "  (as you left it)"))
        self.line(f"Check it   megafuse learn {exercise.name} --check")
        self.line(f"A hint     megafuse learn {exercise.name} --hint")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A line for the seconds that it takes. No spinner: it would disturb the timing."""
        shown = self.console.is_terminal and not self.console.is_dumb_terminal
        text = f"{what} …"
        if shown:
            self.console.print(text, style="dim", end="\r")
        try:
            yield
        finally:
            if shown:
                self.console.print(" " * len(text), end="\r")

    def report(self, exercise: Exercise, file: Path, report: Report) -> None:
        self.line(f"{exercise.number}. {exercise.title}: {_shown(file)}", "bold")
        self.printed(report.printed)
        column = max([13, *(len(finding.what) for finding in report.findings)])
        for finding in report.findings:
            self.finding(finding, column)
        self.line()
        for says in dict.fromkeys(finding.says for finding in report.findings):  # each once
            if says:
                self.text(says)
        wrong = [f.drawn for f in report.findings if f.drawn and f.ok is False]
        right = [f.drawn for f in report.findings if f.drawn and f.ok is not False]
        for drawn in dict.fromkeys(wrong or right):
            self.drawing(drawn)

    def drawing(self, text: str) -> None:
        """A picture of text, as it is."""
        for line in text.splitlines():
            self.line(line, "cyan")
        self.line()

    def finding(self, finding: Finding, column: int) -> None:
        mark, style = _MARK[finding.ok]
        self.console.print(f"  {mark}  ", style=style, end="")
        text = textwrap.fill(
            f"{finding.what:<{column}}  {finding.found}",
            self.width,
            initial_indent=" " * 8,
            subsequent_indent=" " * (column + 10),
            break_on_hyphens=False,
        )
        self.line(text[8:], "dim" if finding.ok is None else "")

    def printed(self, text: str) -> None:
        lines = text.splitlines()
        if not lines:
            return
        self.line("Your file printed:", "dim")
        for line in lines[:_PRINTED]:
            self.line(f"  | {line}", "dim")
        if len(lines) > _PRINTED:
            self.line(f"  | … {len(lines) - _PRINTED} more lines", "dim")

    def verdict(
        self, exercise: Exercise, passed: bool, follows: Exercise | None, praise: str = ""
    ) -> None:
        if not passed:
            self.line(f"Not yet. megafuse learn {exercise.name} --hint", "bold")
            return
        self.line(f"Solved{f', {praise}' if praise else ''}.", "bold green")
        self.line(f"Compare with ours: megafuse learn {exercise.name} --solution")
        if follows is not None:
            self.line(f"Next:              megafuse learn {follows.name}")
        else:
            self.line("That was the last: megafuse learn --certificate")

    def hint(self, exercise: Exercise, at: int) -> None:
        count = len(exercise.hints)
        self.line(f"{exercise.title}: hint {at + 1} of {count}", "bold")
        self.line()
        self.text(exercise.hints[at])
        if at + 1 < count:
            self.line(f"The next one: megafuse learn {exercise.name} --hint")
        else:
            self.line(f"That was the last. Ours: megafuse learn {exercise.name} --solution")

    def solution(self, exercise: Exercise, file: Path) -> None:
        """Ours, or how it differs from theirs."""
        ours = exercise.solution.read_text(encoding="utf-8").splitlines()
        if not file.exists():
            self.line(f"{exercise.title}: our solution", "bold")
            self.line()
            self.line("\n".join(ours))
            return
        theirs = file.read_text(encoding="utf-8", errors="replace").splitlines()
        self.line(f"{exercise.title}: from your file (-) to our solution (+)", "bold")
        self.line()
        if theirs == ours:
            self.line("They are the same.")
        styles = {"+": "green", "-": "red", "@": "cyan"}
        for line in list(difflib.unified_diff(theirs, ours, lineterm="", n=3))[2:]:
            self.line(line, styles.get(line[:1], ""))
        self.line()
        self.text("Your file stays as it is. Another way that passes the check is as good.")


def _advice(exercises: Sequence[Exercise], folder: Folder) -> str:
    left = next((e for e in exercises if folder.state(e) != "done"), None)
    if left is None:
        return "That is all of them: `megafuse learn --certificate` writes it down."
    if folder.state(left) == "open":
        return f"Go on: `megafuse learn {left.name} --check`."
    begun = any(folder.state(e) != "new" for e in exercises)
    return f"{'Next' if begun else 'Begin'}: `megafuse learn {left.name}`."


def _shown(path: Path) -> str:
    """As short as it can be typed from here."""
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return str(path)
