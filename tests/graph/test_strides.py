"""Results lie as eager's do: the strides that a capture shows, with nothing built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from megafuse.graph.capture import capture
from megafuse.graph.lowering import decompositions

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "channels last": lambda: torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last),
    "turned": lambda: torch.randn(3, 4, 5, 6).transpose(-1, -2),
    "permuted": lambda: torch.randn(6, 4, 3, 5).permute(2, 1, 3, 0),
    "with gaps": lambda: torch.randn(3, 4, 5, 13)[..., 1::2],
}


def shown(function: Callable[..., Tensor], x: Tensor) -> list[int]:
    """The strides of the captured result, for the sizes that x has."""
    captured = capture(function, (x,), {}, decompositions())
    outputs: Any = captured.forward.graph.output_node().args[0]
    strides = outputs[captured.returned[0].value].meta["val"].stride()
    return [s.node.hint if isinstance(s, torch.SymInt) else s for s in strides]


def in_place(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        copy = x.clone()
        write(copy)
        return copy

    return function


def fill_part(x: Tensor) -> None:
    x[1:].masked_fill_(x[1:] > 0.5, 0.1)


def set_where(x: Tensor) -> None:
    x[x > 0] = 0


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "masked_fill_": lambda x: x.masked_fill_(x > 0.5, 0.1),
    "masked_fill_ of a part": fill_part,
    "setitem": set_where,
    "tril_": lambda x: x.tril_(),
    "cumsum_": lambda x: x.cumsum_(1),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([0]), 2.0),
    "mul_": lambda x: x.mul_(2),
}


def batch_norm(x: Tensor, training: bool) -> Tensor:
    return F.batch_norm(x, torch.zeros(4), torch.ones(4), training=training)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: in_place(write) for name, write in IN_PLACE.items()},
    "after masked_fill_": lambda x: in_place(IN_PLACE["masked_fill_"])(x).sin(),
    "roll": lambda x: x.roll(1, 2),
    "roll of two": lambda x: x.roll((1, -2), (0, 3)),
    "roll all around": lambda x: x.roll(x.shape[1], 1),
    "batch_norm": lambda x: batch_norm(x, training=False),
    "batch_norm in training": lambda x: batch_norm(x, training=True),
    "batch_norm without statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "logsigmoid": F.logsigmoid,
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(
        x.sigmoid(), x.sigmoid().contiguous(), reduction="none"
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_strides(function: Callable[[Tensor], Tensor], layout: Callable[[], Tensor]) -> None:
    x = layout()
    assert shown(function, x) == list(function(x).stride())


@pytest.mark.parametrize("function", [torch.add, torch.copysign, torch.maximum])
@pytest.mark.parametrize("turned", [False, True])
def test_strides_of_dimensions_that_an_operand_lacks(
    function: Callable[[Tensor, Tensor], Tensor], turned: bool
) -> None:
    """Nothing orders the two of size 17: torch's tracer had one of size 1 decide."""

    def outer(x: Tensor) -> Tensor:
        five = x.unsqueeze(-1).transpose(0, -1)
        return function(x, five) if turned else function(five, x)

    x = torch.randn(1, 17, 1, 1)
    wide = [dim for dim, size in enumerate(outer(x).shape) if size > 1]
    strides, eager = shown(outer, x), outer(x).stride()
    assert [strides[dim] for dim in wide] == [eager[dim] for dim in wide]
