"""How a block's shared memory is divided, which needs no GPU."""

from __future__ import annotations

import pytest
import torch

from megafuse.decode import Unsupported
from megafuse.decode.kernel_cuda import Shared

# What a block may have on sm_90, sm_80, sm_89 and a card with little, and what it gets for it.
LIMITS = {227 << 10: (8, 6), 163 << 10: (8, 4), 99 << 10: (4, 4), 86 << 10: (4, 4)}
BF16 = torch.bfloat16


@pytest.mark.parametrize("limit", LIMITS)
def test_a_block_has_as_many_warps_and_slots_as_fit(limit: int) -> None:
    shared = Shared.of(limit, group=4, pitch=64, weights=BF16, hidden=2048, batch=1)
    assert (shared.workers, shared.slots) == LIMITS[limit]
    assert 4096 + shared.stage + 4 * shared.floats <= limit
    assert shared.stage == shared.slots * 16 * (shared.workers * 256 + 16)
    assert shared.floats >= (4 + 2) * 64 + shared.workers * 4 * (64 + 4)
    assert shared.floats % 4 == 0


@pytest.mark.parametrize(("hidden", "mine"), [(2048, 512), (2560, 640), (3072, 768), (4096, 512)])
def test_rows_of_three_pieces_become_two(hidden: int, mine: int) -> None:
    shared = Shared.of(227 << 10, group=4, pitch=64, weights=BF16, hidden=hidden, batch=1)
    assert (shared.workers, shared.mine) == (8, mine)
    assert 4096 + shared.stage + 4 * shared.floats <= 227 << 10


def test_int8_has_more_slots_of_half_the_bytes() -> None:
    shared = Shared.of(227 << 10, group=4, pitch=64, weights=torch.int8, hidden=2048, batch=1)
    assert (shared.workers, shared.slots) == (8, 12)
    assert shared.stage == 12 * 16 * (8 * 128 + 16)


def test_many_rows_leave_fewer_slots() -> None:
    """Without tensor cores each warp has the inputs of its columns, of all rows of the batch."""
    shared = Shared.of(227 << 10, group=4, pitch=64, weights=torch.float16, hidden=2048, batch=8)
    assert (shared.workers, shared.slots) == (8, 4)
    assert shared.floats >= 8 * 8 * 256 + 2 * (16 * 8 * 8 + 8)


def test_wide_heads_leave_fewer_slots() -> None:
    """64 heads of 256 that share a key head."""
    wide = Shared.of(227 << 10, group=64, pitch=256, weights=BF16, hidden=2048, batch=1)
    assert (wide.workers, wide.slots) < LIMITS[227 << 10]


def test_what_fits_nowhere_is_named() -> None:
    with pytest.raises(Unsupported, match="num_key_value_heads"):
        Shared.of(99 << 10, group=128, pitch=256, weights=BF16, hidden=2048, batch=1)
