"""Every op, every choice, every dtype: fresh random inputs of many shapes against fp64."""

from __future__ import annotations

import pytest
import torch

from contract.cases import CASES, ONE_EACH, Case, pointwise, shaped
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


# Of the first argument of ops that are not pointwise: one to four dimensions, no row, no column
# but one, and as many as a tile has or one more.
ROWS = [(1,), (7,), (0, 6), (5, 1), (33, 17), (64, 64), (3, 5, 65), (2, 3, 4, 12)]


def name(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


@pytest.mark.parametrize("shape", SHAPES, ids=name)
@pytest.mark.parametrize("case", pointwise(CASES), ids=str)
def test_value(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_value(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("shape", ROWS, ids=name)
@pytest.mark.parametrize("case", shaped(CASES), ids=str)
def test_rows(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_value(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("case", shaped(ONE_EACH), ids=str)
def test_larger_rows(case: Case, dtype: torch.dtype, device: str) -> None:
    """Many rows; and, where they are not multiplied with a matrix, rows too long for registers."""
    check_value(case, case.args((513, 129), dtype, device))
    if case.op.family == "rows":
        check_value(case, case.args((3, 40_003), dtype, device))


@pytest.mark.parametrize("case", shaped(CASES), ids=str)
def test_rows_far_from_zero(case: Case, dtype: torch.dtype, device: str) -> None:
    """The first argument up to about 60, and far from zero altogether."""
    first, *others = case.args((65, 96), dtype, device)
    check_value(case, [first * 16, *others])
    check_value(case, [first + 16, *others])


@pytest.mark.parametrize("shape", LARGER, ids=name)
@pytest.mark.parametrize("case", pointwise(ONE_EACH), ids=str)
def test_larger(case: Case, dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    check_value(case, case.args(shape, dtype, device))


@pytest.mark.parametrize("case", pointwise(CASES), ids=str)
def test_far_from_zero(case: Case, dtype: torch.dtype, device: str) -> None:
    """Arguments up to about 60: tails, saturation, and where exp is near its limits."""
    args = case.args((10007,), dtype, device)
    check_value(case, stretched(args, 16), stretch=16)
