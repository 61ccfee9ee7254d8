"""Programs that the fuzzer found and that still fail, each in a process that may crash.

When one is fixed it moves to test_found.py.
"""

from __future__ import annotations

import pytest

from megafuse.compiler.fuzz import Program
from megafuse.compiler.fuzz.child import Child
from megafuse.compiler.fuzz.grammar import generate

OPEN = {
    "crash: 16-bit gradients with stack, sum and trunc": (1, 3),
    "unwritten: an expanded view beside a diagonal": (1, 5),
    "layouts: the gradient of a transposed 4-d argument with a dimension of size 1": (1, 11),
    "NaN: the gradient of amin over a channels_last argument": (1, 30),
}


@pytest.mark.slow
@pytest.mark.xfail(reason="not fixed yet")
@pytest.mark.parametrize("which", OPEN.values(), ids=list(OPEN))
def test_open(which: tuple[int, int]) -> None:
    child = Child()
    program: Program = generate(*which)
    try:
        outcome = child.trial(program)
    finally:
        child.close()
    assert outcome.verdict == "right", outcome.message
