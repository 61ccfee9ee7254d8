"""A limit on the time that a user's call may take.

A signal interrupts Python code; while torch.compile or megafuse compiles, which happens in a first
call and has a limit of its own, it waits. A call that never comes back from C++, and may hold
Python's lock, cannot be interrupted: for the command, which asked for `or_exit`, another process
waits a little longer, then says so and ends this one, which shows at which line it was.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import IO, Any

from torch._guards import CompileContext

from megafuse.runtime import progress

_GRACE = 4.0  # seconds that Python code gets to end by itself
COMPILING = 600.0  # seconds that a call may take while it compiles
_LOOK = 2.0  # seconds between looks at whether it still does
# Waits for the end of its input, which this process closes when the call has come back; a number
# there is how long it has to wait from now on.
_WATCHER = """
import os, select, signal, sys
left = float(sys.argv[1])
while True:
    ready, _, _ = select.select([0], [], [], left)
    if not ready:
        sys.stderr.write(sys.argv[3] + chr(10))
        sys.stderr.flush()
        os.kill(int(sys.argv[2]), signal.SIGABRT)
        break
    said = os.read(0, 4096).split()
    if not said:
        break
    left = float(said[-1])
"""


class TookTooLong(RuntimeError):
    """The call was stopped."""


@contextmanager
def time_limit(seconds: float, what: str, or_exit: bool = False) -> Iterator[None]:
    """Raises TookTooLong in here after so many seconds; in other threads than the main one, and
    where there is no such signal, there is no limit."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    begun = time.monotonic()
    ends = begun + seconds
    over: list[TookTooLong] = []
    longer: Callable[[float], None] | None = None

    def stop(*_: Any) -> None:
        nonlocal ends
        now = time.monotonic()
        compiles = _compiles()
        if compiles and now - begun < COMPILING:
            ends = now + _LOOK + seconds  # what comes after it has the whole limit
            if longer is not None:
                longer(_LOOK + seconds + _GRACE)
            signal.setitimer(signal.ITIMER_REAL, _LOOK)
            return
        if not compiles and now < ends:
            signal.setitimer(signal.ITIMER_REAL, ends - now)
            return
        limit = COMPILING if compiles else seconds
        over.append(
            TookTooLong(
                f"{what} took longer than {limit:g} seconds and was stopped. "
                "Give it a smaller input, or more time: --seconds, or seconds=."
            )
        )
        raise over[0]

    was = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with _ended_after(seconds + _GRACE, what) if or_exit else nullcontext() as longer:
            yield
    except Exception as error:
        # Whoever was interrupted may say it in words of its own.
        if over and error is not over[0]:
            raise over[0] from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)


def _compiles() -> bool:
    """torch.compile, in this thread, or a kernel of ours, in any, just now."""
    return CompileContext.try_get() is not None or progress.compiles()


@contextmanager
def _ended_after(seconds: float, what: str) -> Iterator[Callable[[float], None] | None]:
    """Gives what is to be called with the seconds that it may take from then on."""
    message = (
        f"megafuse: {what} has not come back from native code in {seconds:g} seconds, and cannot "
        "be interrupted there. This is where it is:"
    )
    command = [sys.executable, "-I", "-S", "-c", _WATCHER, str(seconds), str(os.getpid()), message]
    mine = not faulthandler.is_enabled()
    if mine:
        faulthandler.enable(_standard_error())
    try:
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE)
    except OSError:  # no more processes: then without it
        yield None
        return
    told = watcher.stdin
    assert told is not None

    def extend(seconds: float) -> None:
        told.write(f"{seconds}\n".encode())
        told.flush()

    try:
        yield extend
    finally:
        told.close()
        watcher.wait()
        if mine:
            faulthandler.disable()


def _standard_error() -> IO[Any] | int:
    """The real one: a test's or a notebook's has no number."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return 2
    return sys.stderr
