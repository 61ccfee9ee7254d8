"""What a logger says once at most, as transformers' `logger.warning_once`, is said while tracing.

Dynamo has no place in a graph for a logger's methods: it ends the graph there, and to end it traces
everything before it again. GPT-2 says once that its config names no loss, between its logits and
their loss: so it became two graphs and was traced twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def say_while_tracing() -> Callable[[], None]:
    """Until what it returns is called."""
    from torch._dynamo.variables.misc import LoggingLoggerVariable

    usual = LoggingLoggerVariable.call_method

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        from torch._dynamo.variables import ConstantVariable

        method = getattr(self.value, name, None)
        given = (*args, *kwargs.values())
        if _once(method) and all(value.is_python_constant() for value in given):
            named = {key: value.as_python_constant() for key, value in kwargs.items()}
            method(*(value.as_python_constant() for value in args), **named)  # type: ignore[misc]
            return ConstantVariable.create(None)
        return usual(self, tx, name, args, kwargs)

    def revert() -> None:
        LoggingLoggerVariable.call_method = usual  # type: ignore[method-assign]

    LoggingLoggerVariable.call_method = call_method  # type: ignore[method-assign]
    return revert


def _once(method: Any) -> bool:
    """Whether functools.lru_cache keeps it from doing the same again."""
    return isinstance(getattr(method, "__func__", None), functools._lru_cache_wrapper)
