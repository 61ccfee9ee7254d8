"""Threads that call at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


def at_once(call: Callable[[int], None], numbers: Iterable[int]) -> None:
    """call(n) for each number, in a thread of its own. Fails where one of them raises."""
    failed: list[BaseException] = []

    def guarded(n: int) -> None:
        try:
            call(n)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
