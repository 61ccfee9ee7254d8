"""What is wrong in any online softmax, wherever it stands in a file."""

from __future__ import annotations

import re

from megafuse.learn.exercises.cuda import Look

_TIMES_EXP = r"\*\s*(?:std::|__)?expf?\(\s*"
# s * exp(new - old) …; old = new;
_THEN_OLD = re.compile(_TIMES_EXP + r"(\w+)\s*-\s*(\w+)\s*\)[^;]*;[^}]*?\b\2\s*=\s*\1\s*;")
# old = m; … s * exp(m - old)
_OLD_FIRST = re.compile(r"\b(\w+)\s*=\s*(\w+)\s*;[^}]*?" + _TIMES_EXP + r"\2\s*-\s*\1\s*\)")

TURNED = Look(
    lambda source: bool(_THEN_OLD.search(source) or _OLD_FIRST.search(source)),
    "The sum is corrected by exp(new largest - old largest). It is the other way round, exp(old - "
    "new), which is at most 1: around a larger number the same sum is smaller. (And where the old "
    "one is still -3e38, exp(new - old) is inf, and 0 * inf is nan.)",
)
