"""The unfused twins: `megafuse.reference.gelu_scale` is what `megafuse.gelu_scale` must equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megafuse.ops import OPS


def __getattr__(name: str) -> Callable[..., Any]:
    if name in OPS:
        return OPS[name].reference
    raise AttributeError(f"megafuse.reference has no {name!r}; it has {', '.join(sorted(OPS))}")


def __dir__() -> list[str]:
    return sorted(OPS)
