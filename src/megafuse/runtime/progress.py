"""What megafuse tells the user while it works, through the logger "megafuse".

A kernel that was compiled is information (INFO). What runs unfused, and a wait of half a minute,
are warnings, which Python prints to stderr where the program has set up no logging of its own.
Nothing here adds a handler or a level: that is the program's to choose. The command line does, with
`show`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("megafuse")


class _Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment: pytest and notebooks replace it."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is None:  # pythonw.exe and some daemons have none
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def show() -> None:
    """For programs of megafuse's own: every line on stderr, as `megafuse: compiled …`.

    A level or handler that was set before is kept.
    """
    if not logger.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("megafuse: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


class _Underway:
    """How many blocks of `compiling` there are just now, in all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


_underway = _Underway()


def compiles() -> bool:
    """Whether anything of megafuse's is being compiled in this process."""
    return _underway.count > 0


@contextmanager
def compiling(what: str, expect: str | None = None) -> Iterator[None]:
    """Logs `compiled <what> in 0.2 s` after the block, and a warning before it when it is long.

    `expect` says how long in the user's words, e.g. "once, about 30 s"; give it only when the
    wait is one that a person would notice. A block that raises logs no line after.
    """
    if expect is not None:
        logger.warning("compiling %s (%s)", what, expect)
    start = time.perf_counter()
    with _underway:
        yield
    logger.log(
        logging.INFO if expect is None else logging.WARNING,
        "compiled %s in %.1f s",
        what,
        time.perf_counter() - start,
    )
