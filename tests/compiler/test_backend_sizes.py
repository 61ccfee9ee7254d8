"""torch.compile's graphs whose sizes are not known: what Dynamo found out about them is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.counted import launches
from megafuse.compiler.backend import backend
from megafuse.runtime import cpp, generated

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


def test_short_and_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two variants of a kernel serve all lengths; on a CPU 64 elements divide them."""
    built: list[Any] = []
    usual = generated.kernel
    monkeypatch.setattr(generated, "kernel", lambda *what: (built.append(what), usual(*what))[1])

    def biased(x: Tensor, bias: Tensor) -> Tensor:
        return torch.tanh(x + bias)

    call = torch.compile(biased, backend=backend, dynamic=True)
    for cols in (12, 30, 200, 100, 62):
        x, bias = torch.randn(3, cols), torch.randn(cols)
        torch.testing.assert_close(call(x, bias), biased(x, bias))
    assert 1 <= len(built) <= 2
