"""A captured model behind a check of microseconds, in place of all of Dynamo's guards.

Dynamo captures and guards as ever. When a capture is called for the second time, all of its guards
run once more, and what they read of the model is noted (unchanged.py). From then on a call asks the
host whether that is as it was, runs the few guards that are left, and calls the code that Dynamo
made. Whatever is not so goes through torch.compile, with all guards.

MEGAFUSE_CHECK_GUARDS=1 runs all guards at each call as well, and raises where they fail and the
check has passed.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from megafuse.compiler.methods import Methods
from megafuse.compiler.seen import Seen
from megafuse.compiler.unchanged import Refused, unchanged
from megafuse.runtime import progress

_MOST = 16  # times in a row that noting has not paid: then all guards run at each call
_PAYS = 200  # calls: noting takes a tenth of a second


class Checked:
    """One capture. `call` is what Dynamo made of it."""

    def __init__(
        self, entry: Any, function: types.FunctionType, scope: dict[str, Any], methods: Methods
    ) -> None:
        self.code, self.guards = entry.code, entry.guard_manager
        seen = Seen()
        methods.tell(seen)
        names = {**scope, "globals": function.__globals__}
        self.noted = unchanged(self.guards.root, names, seen)
        self._same, self._rest = seen.holds, self.noted.rest.check
        self.fresh = True
        self.call = types.FunctionType(
            self.code, function.__globals__, function.__name__, None, function.__closure__
        )

    def holds(self, scope: dict[str, Any]) -> bool:
        if not self._same() or self.guards.cache_entry is None:  # Dynamo has thrown it away
            return False
        return self._rest(scope) if self.fresh else self._refresh(scope)

    def _refresh(self, scope: dict[str, Any]) -> bool:
        """Guards on tensors share what they know of the thread's modes with the tree of all guards,
        which learns it when it runs. So it must have run last under the modes that we noted."""
        self.fresh = self.guards.check(scope)
        return self.fresh

    def compare(self, scope: dict[str, Any]) -> None:
        """With all guards, after `holds` has passed."""
        if not self.guards.check(scope):
            raise AssertionError(
                "megafuse: the check of an optimized model passed, and Dynamo's guards do not: "
                f"{self.guards.check_verbose(scope)}. Please report this."
            )


class Checks:
    """All captures of one model that are called behind our check."""

    def __init__(self, model: nn.Module, function: types.FunctionType) -> None:
        self.model, self.function = model, function
        self.methods = Methods(model)
        self.checked: list[Checked] = []  # the one that was called last comes first
        self.calls = 0  # that took the short way
        self.refused: list[types.CodeType] = []
        self.debugs = os.environ.get("MEGAFUSE_CHECK_GUARDS", "") not in ("", "0")
        self._left, self._noted_at = _MOST, 0

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """What may be called with these arguments; None: whatever torch.compile finds."""
        scope = {"model": self.model, "args": args, "kwargs": kwargs}
        for at, each in enumerate(self.checked):
            if each.holds(scope):
                if at:
                    self.checked.insert(0, self.checked.pop(at))
                if self.debugs:
                    each.compare(scope)
                self.calls += 1
                return each.call
        return None

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        """Where `find` finds nothing: what may be called since all of its guards pass. What they
        read is noted for the next calls."""
        if not self._may_pay():
            return None
        scope = {"model": self.model, "args": args, "kwargs": kwargs}
        self.guards_ran()
        fitting = (each for each in self._entries() if each.guard_manager.check(scope))
        entry = next(fitting, None)
        if entry is None:
            return None
        made = self._checked(entry, scope)
        if made is None:
            self.refused.append(entry.code)
            return None
        self.checked = [made, *(each for each in self.checked if each.code is not made.code)]
        return made.call

    def guards_ran(self) -> None:
        """Those of captures that were not called, perhaps, and under other modes."""
        for each in self.checked:
            each.fresh = False

    def _may_pay(self) -> bool:
        if self.calls - self._noted_at > _PAYS:
            self._left = _MOST
        return self._left > 0

    def _entries(self) -> Iterable[Any]:
        """Dynamo's captures that may become ours."""
        from torch._dynamo.eval_frame import _debug_get_cache_entry_list

        for each in _debug_get_cache_entry_list(self.function.__code__):
            if not any(each.code is code for code in self.refused):
                yield each

    def _checked(self, entry: Any, scope: dict[str, Any]) -> Checked | None:
        if not _is_whole(entry.code):
            return None
        self._left, self._noted_at = self._left - 1, self.calls
        self.methods.note()
        try:
            made = Checked(entry, self.function, scope, self.methods)
        except Refused:
            return None
        except Exception as error:  # guards are torch's own matter, and may be others tomorrow
            progress.logger.info("megafuse: Dynamo's guards run at each call: %r", error)
            return None
        return made if made.holds(scope) else None


def _is_whole(code: types.CodeType) -> bool:
    """Whether there is one graph in it, and no break, after which Dynamo would be needed again."""
    compiled = [name for name in code.co_names if name.startswith("__compiled_fn")]
    return len(compiled) == 1 and not any("__resume_at" in name for name in code.co_names)
