"""Gradients of many kinds of functions: as in eager, and not captured again for other sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from compiler.backward_cases import CASES, Case
from megafuse.compiler import fuse

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    case = CASES[name]
    fused = fuse(case.function)
    for n, m in case.sizes:
        given = _arguments(case, n, m)
        mine, theirs = _run(fused, given), _run(case.function, given)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert len(fused.variants) == case.captures


def _arguments(case: Case, n: int, m: int) -> list[Any]:
    torch.manual_seed(n * 100 + m)
    return [
        a.requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a
        for a in case.arguments(n, m)
    ]


def _run(function: Any, given: list[Any]) -> tuple[list[Any], list[Any]]:
    """Results and gradients, None where there is none."""
    torch.manual_seed(0)
    results = pytree.tree_leaves(function(*given))
    ends = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    wanted = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    if not ends:
        return results, []
    drawn = [torch.randn(end.shape).to(end.dtype) for end in ends]
    return results, list(torch.autograd.grad(ends, wanted, drawn, allow_unused=True))
