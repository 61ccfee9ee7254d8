"""Lines of generated source: declarations in order, the user's lines above them as comments."""

from __future__ import annotations

import textwrap

WIDTH = 100


class Lines:
    """Source being written. A user's line is a comment above the first statement from it."""

    def __init__(self, indent: int = 0) -> None:
        self._lines: list[str] = []
        self._indent = indent
        self._from: str | None = None

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def add(self, text: str = "") -> None:
        """One statement, broken where it is too long."""
        self._lines += wrapped(text, self._indent) if text else [""]

    def comment(self, text: str | None) -> None:
        """The user's line, unless it is the one that was last."""
        text = (text or "").strip()
        if text and text != self._from:
            self.remark(text)
            self._from = text

    def remark(self, text: str) -> None:
        """Any other comment."""
        pad = " " * self._indent
        for line in text.splitlines():
            wrapped_lines = textwrap.wrap(
                line, WIDTH, initial_indent=f"{pad}// ", subsequent_indent=f"{pad}//     "
            )
            # A backslash at the end would make a comment of the next line, too.
            self._lines += [part.rstrip("\\ ") for part in wrapped_lines] or [f"{pad}//"]

    def open(self, text: str) -> None:
        self.add(text)
        self._indent += 2
        self._from = None

    def close(self, text: str = "}") -> None:
        self._indent -= 2
        self.add(text)

    def inner(self) -> Lines:
        """What is inside of the function that comes next; `function` puts it there."""
        return Lines(self._indent + 2)

    def function(self, head: str, body: Lines) -> None:
        """On one line where there is but one statement, and it fits."""
        one = f"{head} {{ {body._lines[0].strip()} }}" if len(body._lines) == 1 else ""
        if one and len(one) + self._indent <= WIDTH and "//" not in one:
            self.add(one)
            return
        self.add(head + " {")
        self._lines += body._lines
        self.add("}")


def wrapped(text: str, indent: int) -> list[str]:
    """A statement within WIDTH columns, broken at spaces, as clang-format would at worst."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
