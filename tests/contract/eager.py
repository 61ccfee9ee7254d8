"""Eager's 16-bit products on the CPU, sooner: in float32 and rounded once.

The suite waits for eager much longer than for us where the CPU has no 16-bit instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from megafuse.runtime.widened import Widened

Function = TypeVar("Function", bound=Callable[..., Any])


def eagerly(function: Function) -> Function:
    """`function`, of PyTorch's ops alone, with such products on the CPU."""

    @functools.wraps(function)
    def run(*args: Any, **more: Any) -> Any:
        with Widened():
            return function(*args, **more)

    return run  # type: ignore[return-value]
