"""What is stored lies so that there is room for all of it, and can be written and read."""

from __future__ import annotations

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from graph.test_partition import calls, check
from megafuse.graph.signs import may_be_negative


def test_a_part_does_not_say_how_the_whole_lies() -> None:
    """The first third lies as if there were nothing else: the whole cannot. An attention layer's
    projection to queries, keys and values, of one head, was overwritten so."""

    def thirds(x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x)
        return h[..., :16].contiguous(), h[..., 16:].contiguous()

    check(thirds, torch.randn(6, 5, 48))


def test_a_dimension_turned_back_has_no_stride() -> None:
    """Its stride is −n·(h − k + 1)·(w − k + 1), of which sympy does not know the sign."""

    def turned(x: Tensor, w: Tensor) -> Tensor:
        return (F.conv2d(x, w).tanh() * 2).flip(0).cumsum(0)

    plan = check(turned, torch.randn(5, 4, 5, 9), torch.randn(6, 4, 3, 3))
    assert calls(plan) == ["aten::convolution", "aten::cumsum"]


def test_heads_that_are_joined_are_written_once() -> None:
    """Two products take them joined, and the transpose of that: both are views of what one kernel
    writes, with its dimensions in their order."""

    def joined(x: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.tanh(x).transpose(1, 2).flatten(2).flatten(0, 1)
        return rows @ weight, rows.t() @ tokens

    x, weight, tokens = torch.randn(3, 4, 5, 8), torch.randn(32, 7), torch.randn(15, 6)
    plan = check(joined, x, weight, tokens)
    assert len(plan.kernels) == 1
    (written,) = plan.kernels[0].writes
    assert [int(size == 1) for size in written.strides] == [0, 0, 0, 1]


def test_turned_heads_of_a_product_lie_as_its_columns() -> None:
    """As eager leaves them: an attention's result lies as its query does."""

    def attended(x: Tensor, weight: Tensor, angle: Tensor, key: Tensor) -> Tensor:
        query = (x @ weight).unflatten(-1, (4, 8)).transpose(1, 2)
        half = torch.cat((-query[..., 4:], query[..., :4]), -1)
        query = query * angle.cos() + half * angle.sin()
        return F.scaled_dot_product_attention(query, key, key).transpose(1, 2).flatten(2)

    x, weight, angle = torch.randn(2, 5, 6), torch.randn(6, 32), torch.randn(5, 8)
    plan = check(attended, x, weight, angle, torch.randn(2, 4, 5, 8))
    turned = next(each for each in plan.kernels if len(each.shape) == 4)
    heads, tokens = (turned.writes[0].strides[d] for d in (1, 2))
    assert (heads, tokens) == (8, 32)


def test_sums_of_groups_are_written_joined() -> None:
    def joined(x: Tensor, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        groups = x.unflatten(1, (2, 2)).sum(2)
        rows = groups.transpose(1, 2).flatten(2).flatten(0, 1)
        return rows @ weight, rows.t() @ tokens

    x, weight, tokens = torch.randn(3, 4, 5, 8), torch.randn(16, 7), torch.randn(15, 6)
    assert len(check(joined, x, weight, tokens).kernels) == 1


def test_the_sign_of_a_product_of_sizes() -> None:
    n, h, k = sympy.symbols("n h k", integer=True, positive=True)
    size = h - k + 1
    assert not may_be_negative([sympy.expand(n * size), size, 1, 0], [n, size])
    assert may_be_negative([sympy.expand(-n * size), size], [n, size])
    assert may_be_negative([-n], [n])
    assert may_be_negative([size], [k - h, size])  # there is no such size
