"""A run that is terminated ends as with Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopping_when_told() -> Iterator[None]:
    """SIGTERM (`timeout` sends it) is a KeyboardInterrupt in here: the file is written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, was)
