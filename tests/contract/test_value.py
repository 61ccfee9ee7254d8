"""Every op, every choice, every dtype: fresh random inputs of many shapes against fp64."""

from __future__ import annotations

import pytest
import torch

from contract.cases import CASES, ONE_EACH, Case
from contract.rules import check_value, stretched

SHAPES = [
    (),
    (1,),
    (0,),
    (0, 5),
    (7,),
    (33,),
    (1000,),
    (64, 64),
    (3, 5, 7),
    (2, 3, 4, 5),
]
# Many threads, many blocks; odd, so that the last vector is a part of one.
LARGER = [(100003,), ((1 << 20) + 3,)]


def name(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


@pytest.mark.parametrize("shape", SHAPES, ids=name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_value(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("shape", LARGER, ids=name)
@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_larger(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_value(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_far_from_zero(case: Case, dtype: torch.dtype, device: str) -> None:
    """Arguments up to about 60: tails, saturation, and where exp is near its limits."""
    args = case.args((10007,), dtype, device)
    check_value(case, stretched(args, 16), stretch=16)
