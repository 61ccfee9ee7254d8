"""What planning remembers: layers that repeat take no further proofs."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from megafuse.compiler.compile import compiled
from megafuse.compiler.uncollected import uncollected
from megafuse.graph import affine, coordinates, storage

PROOFS = (
    coordinates._reshape,
    coordinates._simplified_in,
    coordinates._not_negative,
    coordinates._never_negative,
    affine._flat,
    affine._mapped,
    affine._affine,
    storage._any_layout_does,
)


def layers(count: int, x: Tensor, w: Tensor) -> Tensor:
    """Heads apart and together again, between products."""
    for _ in range(count):
        heads = (x @ w).view(x.shape[0], x.shape[1], 4, -1).transpose(1, 2)
        weights = torch.softmax(heads @ heads.transpose(-1, -2), -1)
        x = torch.sin(weights @ heads).transpose(1, 2).flatten(2)
    return x


def proofs(count: int) -> list[int]:
    for each in PROOFS:
        each.cache_clear()

    def function(x: Tensor, w: Tensor) -> Tensor:
        return layers(count, x, w)

    compiled(function, (torch.randn(3, 5, 24), torch.randn(24, 24)), {}, "fused")
    return [each.cache_info().misses for each in PROOFS]


@pytest.mark.slow
def test_more_layers_take_no_more_proofs() -> None:
    assert proofs(6) == proofs(3)


def test_the_collector_is_as_it_was() -> None:
    def broken() -> None:
        with uncollected():
            assert not gc.isenabled()
            raise ZeroDivisionError

    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with pytest.raises(ZeroDivisionError):
                broken()
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
