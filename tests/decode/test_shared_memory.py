"""How a block's shared memory is divided, which needs no GPU."""

from __future__ import annotations

import pytest

from megafuse.decode import Unsupported
from megafuse.decode.kernel_cuda import Shared

# What a block may have on sm_90, sm_80, sm_89 and a card with little.
LIMITS = {227 << 10: 512, 163 << 10: 384, 99 << 10: 256, 64 << 10: 128}


def attention(heads: int, width: int, chunk: int = 64) -> int:
    return (heads + 2) * width + heads * chunk


@pytest.mark.parametrize("limit", LIMITS)
def test_a_block_has_as_many_warps_as_fit(limit: int) -> None:
    shared = Shared.of(limit, attention(4, 64), products=8192)
    assert shared.threads == LIMITS[limit]
    assert 4096 + shared.stage + 4 * shared.floats <= limit
    assert shared.stage == shared.threads // 32 * 8192
    assert shared.floats >= attention(4, 64) + shared.threads // 32 * 512
    assert shared.floats % 4 == 0


def test_wide_heads_leave_fewer_warps() -> None:
    """32 heads of 256 that share a key head, over pieces of 256 positions."""
    wide = Shared.of(163 << 10, attention(32, 256, 256), products=8192)
    assert wide.threads < LIMITS[163 << 10]


def test_what_fits_nowhere_is_named() -> None:
    with pytest.raises(Unsupported, match="num_key_value_heads"):
        Shared.of(99 << 10, attention(64, 256, 256), products=8192)
