"""Coordinates times strides: what a reshape of contiguous memory comes to."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv, Mod

from megafuse.graph.affine import affine, flat
from megafuse.graph.ir import axis

s, t = sympy.symbols("s t", integer=True, positive=True)


@pytest.mark.parametrize("tokens", [sympy.Integer(1024), s, s + t, 2 * s + 3])
def test_rows_of_two_dimensions_are_rows_of_one(tokens: sympy.Expr) -> None:
    """A sequence's length may be a sum: what is in the cache, and what comes now."""
    i, j = axis(0), axis(1)
    strides = (sympy.expand(1001 * tokens), 1001, 1)
    assert affine(flat((FloorDiv(i, tokens), Mod(i, tokens), j), strides), (i, j)) == (0, [1001, 1])


def test_what_is_not_contiguous_stays_as_it_is() -> None:
    i, j = axis(0), axis(1)
    at = (FloorDiv(i, s + t), Mod(i, s + t), j)
    assert affine(flat(at, (1001 * s, 1001, 1)), (i, j)) is None
