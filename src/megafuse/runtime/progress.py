"""What megafuse tells the user while it works: `megafuse: compiling …` lines on stderr.

Silence them with `logging.getLogger("megafuse").setLevel("WARNING")`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


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


def _set_up() -> logging.Logger:
    """The "megafuse" logger; a level or handler that the user set before the import is kept."""
    log = logging.getLogger("megafuse")
    if not log.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("megafuse: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    return log


logger = _set_up()


@contextmanager
def compiling(what: str, expect: str | None = None) -> Iterator[None]:
    """Logs `compiled <what> in 0.2 s` after the block, and a line before it when it is long.

    `expect` says how long in the user's words, e.g. "once, about 30 s"; give it only when the
    wait is one that a person would notice. A block that raises logs no line after.
    """
    if expect is not None:
        logger.info("compiling %s (%s)", what, expect)
    start = time.perf_counter()
    yield
    logger.info("compiled %s in %.1f s", what, time.perf_counter() - start)
