"""What people read on the terminal."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest

from megafuse.diagnose import findings
from megafuse.diagnose.text import WIDTH, shortened

MODULES = [module for _, module in inspect.getmembers(findings, inspect.ismodule)]


def advices(module: ModuleType) -> Iterator[str]:
    """What its findings say is to be done, where that is written out."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            parts = list(ast.walk(node.args[2]))
            if not any(isinstance(part, ast.JoinedStr) for part in parts):
                strings = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
                yield from (string for string in strings if string.endswith("."))


def test_there_are_some() -> None:
    assert sum(len(list(advices(module))) for module in MODULES) >= 15


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_advice_fits_a_line_and_is_whole(module: ModuleType) -> None:
    for advice in advices(module):
        said = shortened(advice)
        assert len(said) <= WIDTH - 3, said
        assert said.endswith(".")
        assert said.count("(") == said.count(")"), said


def test_a_line_does_not_end_within_brackets() -> None:
    advice = "Fuse them (megafuse.fuse, megafuse.optimize) and replay what is left as a CUDA graph."
    assert shortened(advice) == advice  # it was cut after megafuse.fuse
