"""Programs that the fuzzer found and that still fail, each in a process that may crash.

When one is fixed it moves to test_found.py.
"""

from __future__ import annotations

import pytest

from megafuse.compiler.fuzz import Argument, Program
from megafuse.compiler.fuzz.child import Child

OPEN = {
    "SIGSEGV: gradients that are all zero, of one number": (
        "v0 = a0.sum().trunc()",
        Argument("a0", "float32", ((300, 3), (3, 3)), requires_grad=True),
    ),
    "nobody writes an expanded view of an argument": (
        "v0 = a0.unbind(1)[0].unsqueeze(-1).expand(-1, 1, 3)",
        Argument("a0", "float32", ((3, 3, 1), (3, 3, 1))),
    ),
    "captured for other layouts: a transposed argument with a dimension of size 1": (
        "v0 = a0.transpose(0, -1)",
        Argument("a0", "float32", ((3, 3, 1, 3), (3, 3, 1, 3)), requires_grad=True),
    ),
    "the gradient of amin is NaN": (
        "v0 = (torch.sqrt(a0.abs() + 0.1) / max(a0.shape[1], 1)).amin(2)",
        Argument("a0", "bfloat16", ((3, 3, 3, 1), (3, 3, 3, 1)), requires_grad=True),
    ),
}


@pytest.mark.slow
@pytest.mark.xfail(reason="not fixed yet")
@pytest.mark.parametrize("which", OPEN.values(), ids=list(OPEN))
def test_open(which: tuple[str, Argument]) -> None:
    child = Child()
    statement, argument = which
    program = Program.of_source(f"def program(a0):\n{statement}\nreturn v0,", [argument])
    try:
        outcome = child.trial(program)
    finally:
        child.close()
    assert outcome.verdict == "right", outcome.message
