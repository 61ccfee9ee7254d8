"""The terminal: headings, paragraphs, tables, source code, and waiting for the reader."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_NARROW = 72  # columns below which a table's rows stand one under the other


class Stopped(Exception):
    """The reader has seen enough for now."""


class Screen:
    """Prints for a terminal of any width, and for a file."""

    def __init__(self, pause: bool) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        self._asks = pause and sys.stdin is not None and sys.stdin.isatty()

    @property
    def asks(self) -> bool:
        """Whether somebody answers."""
        return self._asks

    @property
    def width(self) -> int:
        return self.console.width

    def heading(self, text: str) -> None:
        self.console.print(f"\n{text}", style="bold")
        self.console.print("─" * min(len(text), self.width) + "\n")

    def say(self, text: str) -> None:
        """A paragraph."""
        self.console.print(text + "\n")

    def note(self, text: str) -> None:
        """How something was measured: for those who want to know."""
        self.console.print(text + "\n", style="dim")

    def items(self, items: Iterable[Sequence[str]]) -> None:
        """Numbered, each of one or more lines."""
        for number, lines in enumerate(items, 1):
            head = f"{number}  "
            for line in lines:
                for part in textwrap.wrap(line, self.width - 3):
                    self.console.print(head + part)
                    head = "   "
        self.console.print()

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """The first column is what a row is about; the others are numbers."""
        if self.width < _NARROW:
            self._one_under_the_other(titles, rows)
            return
        table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.pad_edge = False
        for i, title in enumerate(titles):
            table.add_column(title, justify="right" if i else "left", no_wrap=i > 0)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def _one_under_the_other(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        longest = max(map(len, titles[1:]))
        for row in rows:
            self.console.print(row[0], style="bold")
            for title, value in zip(titles[1:], row[1:], strict=True):
                self.console.print(f"  {title.replace(chr(10), ' '):<{longest}}  {value}")
        self.console.print()

    def bars(self, bars: Sequence[tuple[str, float, str]]) -> None:
        """(label, value, text at the end): the longest bar takes what room there is."""
        label, text = (max(len(bar[i]) for bar in bars) for i in (0, 2))  # type: ignore[arg-type]
        room = max(self.width - label - text - 4, 8)
        longest = max(value for _, value, _ in bars) or 1.0
        for name, value, said in bars:
            drawn = "█" * max(1, round(room * value / longest))
            self.console.print(f"{name:<{label}}  {drawn:<{room}}  {said:>{text}}", no_wrap=True)
        self.console.print()

    def code(self, lines: Sequence[str]) -> None:
        for line in lines:
            for part in _wrapped(line, self.width - 2):
                self.console.print(f"  {part}", style="cyan", no_wrap=True)
        self.console.print()

    def explained(self, lines: Sequence[tuple[str, str]]) -> None:
        """Source code, below each line what it means."""
        for line, meaning in lines:
            for part in _wrapped(line, self.width - 2):
                self.console.print(f"  {part}", style="cyan", no_wrap=True)
            for part in textwrap.wrap(meaning, self.width - 4):
                self.console.print(f"  │ {part}", style="dim")
        self.console.print()

    def working(self, what: str | None) -> None:
        """A line that the next replaces. No spinner: its thread would disturb the measurement."""
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            text = "" if what is None else f"{what} …"
            self.console.print(f"{text:<{min(60, self.width - 1)}}", end="\r")

    def drawing(self, lines: Sequence[str]) -> None:
        """A picture of text, cut where the terminal ends."""
        for line in lines:
            self.console.print(line[: self.width], style="cyan", no_wrap=True, overflow="crop")
        self.console.print()

    def line_of_code(self) -> str:
        """What the reader types; empty where they want it filled in."""
        return self._answer("your line, ? or Enter: ") if self._asks else ""

    def guess(self, question: str) -> float | None:
        """Asks for a number; None where nobody answers, or with something else."""
        self.console.print(f"Guess first: {question}", style="bold")
        if not self._asks:
            self.console.print()
            return None
        with contextlib.suppress(ValueError):
            return float(self._answer("your guess, or Enter: ").rstrip("x×% ").replace(",", "."))
        return None

    def recall(self, guess: float | None) -> None:
        """What the reader guessed, beside what was measured."""
        if guess is not None:
            self.say(f"You said {guess:g}.")

    def pause(self) -> None:
        """Before the next step; q stops here."""
        if self._asks and self._answer("Enter for the next step, q to stop: ").lower() == "q":
            raise Stopped

    def _answer(self, prompt: str) -> str:
        try:
            return input(prompt).strip()
        except EOFError:
            self._asks = False
            return ""


def _wrapped(line: str, width: int) -> list[str]:
    """A line of code; where it is too long, the rest is indented below it."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line, max(width, 20), subsequent_indent=indent + "    ", break_long_words=True
    ) or [""]
