"""Why is it slow: `mf.diagnose(function, *args)`, the command `megafuse diagnose`, and their parts.

    record.py     what one call ran: its operations, their times, bytes and FLOPs
    machine.py    the roofs of the machine that ran it, measured
    finding.py    one reason why it is slow: evidence, what to do, predicted and measured gain
    diagnosis.py  all of it with the verdict, and its JSON

    subject.py    what is called; keep.py puts back what calls change, limit.py stops them
    observe.py    calls it: watch.py, native.py and timeline.py see, join.py makes one record of it
    findings/     a file for each reason; rank.py chooses, trials.py tries, fix.py writes diffs
    text.py       the answer in a terminal; notebook.py, and page/ in a browser

The package can be called: `megafuse.diagnose(…)` is `megafuse.diagnose.api.diagnose(…)`.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        from megafuse.diagnose.api import diagnose

        return diagnose(function, *args, **kwargs)


sys.modules[__name__].__class__ = _Callable
