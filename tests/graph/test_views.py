"""Views of dense tensors while tracing: eager's sizes, and where these cancel no question but what
divides what."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from megafuse.compiler import fuse
from megafuse.graph import views
from megafuse.graph.capture import capture


def grouped(x: Tensor) -> Tensor:
    """As a group norm does, there and back."""
    n, c, h, w = x.shape
    return x.reshape(n, 4, -1).mul(2).reshape(n, c, h, w) + 1


def windows(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    parts = x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).contiguous()
    return parts.view(-1, 4, c).add(1).view(n, h // 2, w // 2, 2, 2, c)


def heads(x: Tensor) -> Tensor:
    rows = x.flatten(2).transpose(1, 2).contiguous()
    split = rows.view(*rows.shape[:2], 2, -1).transpose(1, 2).contiguous()
    return split.mul(2).view(rows.shape[0] * 2, rows.shape[1], -1) - 1


def joined(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n * c, h * w).mul(3).view(n, c, h, w)


@pytest.mark.parametrize("function", [grouped, windows, heads, joined])
def test_sizes_that_cancel_are_not_asked_about(
    function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    by_question = views._asked
    monkeypatch.setattr(views, "_asked", lambda *given: asked.append(given) or by_question(*given))
    fused = fuse(function)
    for sizes in ((2, 8, 4, 6), (3, 12, 6, 10)):
        x = torch.randn(sizes)
        made = fused(x)
        assert made.stride() == function(x).stride()
        torch.testing.assert_close(made, function(x))
    assert not asked
    assert len(fused.variants) == 1


def test_a_size_that_the_groups_do_not_divide_is_eagers_error() -> None:
    x = torch.randn(2, 6, 3, 3)
    with pytest.raises(RuntimeError) as eager:
        grouped(x)
    with pytest.raises(RuntimeError) as ours:
        fuse(grouped)(x)
    assert str(ours.value).splitlines()[0] == str(eager.value)


def test_groups_that_divide_the_whole_and_no_size() -> None:
    """[2, 6, 2, 3] as [2, 4, −1]: 4 divides 36, and not 6."""
    fused = fuse(grouped)
    for sizes in ((2, 6, 2, 3), (2, 8, 2, 3), (1, 2, 6, 5)):
        x = torch.randn(sizes)
        torch.testing.assert_close(fused(x), grouped(x))


def factors(of: int, count: int, draw: random.Random) -> list[int]:
    """`count` sizes whose product it is."""
    found = [1] * count
    for prime in (2, 3, 5, 7):
        while of % prime == 0:
            of //= prime
            found[draw.randrange(count)] *= prime
    return found


@pytest.mark.slow
@pytest.mark.parametrize("index", range(20))
def test_views_of_numbers_have_eagers_sizes(index: int) -> None:
    """Shapes of any numbers, −1 among them, of symbolic tensors."""
    draw = random.Random(index)
    sizes = [draw.choice((1, 2, 3, 4, 6, 10, 14)) for _ in range(draw.randint(1, 4))]
    shape = factors(math.prod(sizes), draw.randint(1, 4), draw)
    if draw.random() < 0.5:
        shape[draw.randrange(len(shape))] = -1
    x = torch.randn(sizes)
    traced = capture(lambda x: x.view(shape), [x])
    (found,) = [n.meta["val"] for n in traced.forward.graph.output_node().args[0]]
    shown = [size.node.hint if isinstance(size, torch.SymInt) else size for size in found.shape]
    assert shown == [*x.view(shape).shape]
    fused = fuse(lambda x: x.view(shape) + 1)
    torch.testing.assert_close(fused(x), x.view(shape) + 1)


def every_other(x: Tensor) -> Tensor:
    y = (x * 2)[..., ::2].contiguous()
    return y.view(x.shape[0] * x.shape[1], y.shape[-1]) + 1


def test_sizes_that_cancel_as_they_are_need_not_be_even() -> None:
    """(s + 1)//2 on both sides: no matter whether s + 1 is a multiple of 2."""
    fused = fuse(every_other)
    for size in (9, 10, 13):
        x = torch.randn(3, 4, size)
        torch.testing.assert_close(fused(x), every_other(x))
    assert len(fused.variants) == 1
