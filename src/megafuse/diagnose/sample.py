"""Where the host is when it runs no operation: its line, looked at every so often.

Calls into C that are no plain functions (NumPy's, say) do not show in Python's profile hook. So
where much of a call is unexplained, another thread looks which line of the user's is running.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from megafuse.diagnose import frames
from megafuse.diagnose.record import Where

_SAMPLES = 100  # about so many are taken
_LONGEST = 1.0  # seconds of calls
_LEAST = 10  # samples that say something


def lines(call: Callable[[], object], seconds: float) -> dict[Where, float]:
    """The share of the time that each line takes, of calls that take so many seconds each."""
    taken: Counter[Where] = Counter()
    done = threading.Event()
    main = threading.get_ident()
    every = min(5e-3, max(2e-4, seconds / _SAMPLES))

    def look() -> None:
        while not done.wait(every):
            frame = sys._current_frames().get(main)
            if frame is not None:
                taken[frames.own_line(frame, lines.__code__)] += 1

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # else the other thread waits 5 ms for its turn
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        end = time.perf_counter() + min(_LONGEST, max(seconds, _SAMPLES * every))
        call()
        while time.perf_counter() < end:
            call()
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(switching)
    total = sum(taken.values())
    return {where: n / total for where, n in taken.items()} if total >= _LEAST else {}
