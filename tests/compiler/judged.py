"""Programs of the fuzzer's, each held to its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from megafuse.compiler.fuzz import Program, trial
from megafuse.compiler.fuzz.report import Finding, test_case

test_case.__test__ = False  # type: ignore[attr-defined]


def are_right(generate: Callable[[int, int], Program], seed: int, indices: Iterable[int]) -> None:
    """Those of the seed with these numbers; a failure is told as a test case."""
    for index in indices:
        program = generate(seed, index)
        outcome = trial(program)
        assert outcome.verdict in ("right", "refused"), test_case(Finding(index, program, outcome))
