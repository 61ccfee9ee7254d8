"""How many kernels of ours a call launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megafuse.runtime import loader


def launches(call: Callable[[], Any]) -> int:
    host = loader.load()
    assert host is not None
    before: int = host.launch_count()
    call()
    return host.launch_count() - before  # type: ignore[no-any-return]
