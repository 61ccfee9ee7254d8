"""torch.compile's graphs whose sizes are not known: what Dynamo found out about them is used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compiler.counted import launches
from megafuse.compiler.backend import backend
from megafuse.runtime import cpp

pytestmark = [
    pytest.mark.skipif(cpp.find() is None, reason="no C++ compiler"),
    pytest.mark.usefixtures("anew"),
]


def test_halves_of_any_size() -> None:
    """Without Dynamo's guard, (s + 1)//2 and s − (s + 1)//2 are two sizes."""

    def gated(x: Tensor) -> Tensor:
        a, b = (x * 2).chunk(2, -1)
        return torch.sigmoid(a) * b

    call = torch.compile(gated, backend=backend, dynamic=True)
    for cols in (12, 70):
        x = torch.randn(3, cols, requires_grad=True)
        out, expected = call(x), gated(x)
        torch.testing.assert_close(out, expected)
        ours, theirs = (torch.autograd.grad(each.sum(), x) for each in (out, expected))
        torch.testing.assert_close(ours, theirs)
    assert launches(lambda: call(x)) == 1
