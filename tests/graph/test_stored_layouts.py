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


def test_the_sign_of_a_product_of_sizes() -> None:
    n, h, k = sympy.symbols("n h k", integer=True, positive=True)
    size = h - k + 1
    assert not may_be_negative([sympy.expand(n * size), size, 1, 0], [n, size])
    assert may_be_negative([sympy.expand(-n * size), size], [n, size])
    assert may_be_negative([-n], [n])
    assert may_be_negative([size], [k - h, size])  # there is no such size
