"""Gradients of any layout, complex and sparse ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import megafuse as mf
from megafuse.optim import launch as launching
from optim.cases import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER


def test_strides_where_there_is_one_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """They mean nothing: such a gradient is not copied."""
    monkeypatch.setattr(launching, "_made_fit", lambda row: pytest.fail("copied"))
    value = nn.Parameter(torch.zeros(1, 5))
    value.grad = torch.arange(5.0).as_strided((1, 5), (1, 1))
    mf.optim.SGD([value], lr=1.0).step()
    assert torch.equal(value.detach(), -torch.arange(5.0).view(1, 5))


def test_gradients_that_lie_otherwise() -> None:
    """Transposed, and expanded from one number; a parameter with gaps is torch's to do."""
    whole = torch.randn(8, 12)
    found = []
    for kind in (mf.optim.AdamW, torch.optim.AdamW):
        base = whole.clone()
        values = [nn.Parameter(base[:, :6].detach()), nn.Parameter(whole.clone())]
        values.append(nn.Parameter(torch.ones(5, 4)))
        optimizer = kind(values, lr=0.1)
        for _ in range(3):
            values[0].grad = values[0].detach().clone()
            values[1].grad = torch.cos(values[1].detach()).t().contiguous().t()
            values[2].grad = torch.ones(()).expand(5, 4)
            optimizer.step()
        found.append([*values, base])
        assert [s["step"].item() for s in optimizer.state.values()] == [3, 3, 3]
    assert not torch.equal(found[0][3][:, :6], whole[:, :6])
    assert torch.equal(found[0][3][:, 6:], whole[:, 6:])
    torch.testing.assert_close(*found)


def test_complex_and_sparse_ones() -> None:
    for kind in (mf.optim.AdamW, mf.optim.SGD):
        theirs = getattr(torch.optim, kind.__name__)
        found = []
        for each in (kind, theirs):
            value = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
            optimizer = each([value], lr=0.1)
            value.grad = torch.tensor([0.5 - 1j, 1j])
            optimizer.step()
            found.append(value.detach())
        torch.testing.assert_close(*found)
    table = nn.Embedding(5, 3, sparse=True)
    expected = table.weight.detach().clone()
    expected[2] -= 0.5
    table(torch.tensor([2])).sum().backward()
    mf.optim.SGD(table.parameters(), lr=0.5).step()
    torch.testing.assert_close(table.weight.detach(), expected)
    for kind in (mf.optim.AdamW, mf.optim.Lion):
        with pytest.raises(RuntimeError, match="sparse"):
            kind(table.parameters()).step()
