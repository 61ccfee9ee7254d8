"""kernels/draws.h in torch operations, slowly: the same random numbers of the same state.

What graphs with draws in them are compared with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def uniform(seed: Tensor, offset: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """In [0, 1)."""
    if dtype == torch.float64:
        four = _words(seed, offset, index >> 1)
        odd = (index & 1) == 1
        high, low = (torch.where(odd, four[2 + k], four[k]) for k in range(2))
        return _of_two(high, low)
    four = _words(seed, offset, index >> 2)
    word = torch.stack(torch.broadcast_tensors(*four)).gather(0, _lane(index)[None])[0]
    return (word.float() * 2**-32).clamp(max=1 - 2**-24)


def normal(seed: Tensor, offset: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """With mean 0 and standard deviation 1: Box and Muller. In float64 until the end."""
    if dtype == torch.float64:
        a, b, c, d = _words(seed, offset, index)
        share, turn, which = _of_two(a, b) + 2**-54, _of_two(c, d), torch.zeros_like(index)
    else:
        four = _words(seed, offset, index >> 2)
        second = (index & 2) != 0
        share = torch.where(second, four[2], four[0]).double() * 2**-32 + 2**-33
        # kernels/draws.h has the quarter's angle around 0: the turn is the same, less 1/8.
        turn = torch.where(second, four[3], four[1])
        quarter, rest = turn >> 30, (turn << 2) & _LOW
        rest = torch.where(rest >= 2**31, rest - 2**32, rest)
        turn, which = (quarter.double() + rest.double() * 2**-32) / 4, index & 1
    angle = 2 * math.pi * turn - which.double() * (math.pi / 2)
    return ((-2 * share.log()).sqrt() * angle.cos()).to(dtype)


def _of_two(high: Tensor, low: Tensor) -> Tensor:
    return ((high << 21) | (low >> 11)).double() * 2**-53


def _lane(index: Tensor) -> Tensor:
    return index & 3


def _words(seed: Tensor, offset: Tensor, counter: Tensor) -> list[Tensor]:
    """The four words of a counter: Philox4x32 with 7 rounds, each in the low half of an int64."""
    a, b, c, d = (*_halves(counter), *_halves(offset))
    key0, key1 = _halves(seed)
    for _ in range(7):
        left, right = a * 0xD2511F53, c * 0xCD9E8D57  # they wrap, and their bits are right
        a, c = _halves(right)[1] ^ b ^ key0, _halves(left)[1] ^ d ^ key1
        b, d = right & _LOW, left & _LOW
        key0, key1 = (key0 + 0x9E3779B9) & _LOW, (key1 + 0xBB67AE85) & _LOW
    return [a, b, c, d]


def _halves(word: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits."""
    return word & _LOW, (word >> 32) & _LOW
