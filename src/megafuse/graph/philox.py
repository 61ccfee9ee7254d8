"""kernels/draws.h in torch operations, slowly: the same random numbers of the same state.

What graphs with draws in them are compared with. Words of 32 bits are the low halves of int64s.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def uniform(seed: Tensor, offset: Tensor, place: Tensor, dtype: torch.dtype) -> Tensor:
    """In [0, 1)."""
    a, b = _words(seed, offset, place)
    if dtype == torch.float64:
        return ((a << 21) | (b >> 11)).double() * 2**-53
    return (a.float() * 2**-32).clamp(max=1 - 2**-24)


def normal(seed: Tensor, offset: Tensor, place: Tensor, dtype: torch.dtype) -> Tensor:
    """With mean 0 and standard deviation 1: Box and Muller. In float64 until the end."""
    if dtype == torch.float64:
        share = uniform(seed, offset, 2 * place, dtype) + 2**-54
        turn = uniform(seed, offset, 2 * place + 1, dtype)
    else:
        a, b = _words(seed, offset, place)
        share = a.double() * 2**-32 + 2**-33
        rest = (b << 2) & _LOW  # of the quarter's angle, which is around 0
        turn = ((b >> 30) + torch.where(rest >= 2**31, rest - 2**32, rest).double() * 2**-32) / 4
    return ((-2 * share.log()).sqrt() * (2 * math.pi * turn).cos()).to(dtype)


def _words(seed: Tensor, offset: Tensor, counter: Tensor) -> tuple[Tensor, Tensor]:
    """Of a counter: Philox2x32 with 7 rounds."""
    mixed = offset * _signed(0xBF58476D1CE4E5B9)  # products wrap, and their bits are right
    mixed = (mixed ^ _halves(mixed)[1]) * _signed(0x94D049BB133111EB)
    low, key = _halves(mixed)
    masks = low ^ _halves(seed)[0], _halves(seed)[1]
    a, b = (half ^ mask for half, mask in zip(_halves(counter), masks, strict=True))
    for _ in range(7):
        product = a * 0xD256D193
        a, b = _halves(product)[1] ^ key ^ b, _halves(product)[0]
        key = (key + 0x9E3779B9) & _LOW
    return a, b


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _halves(word: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits."""
    return word & _LOW, (word >> 32) & _LOW
