"""The same numbers elsewhere in memory: for tensors of any shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _reversed(t: Tensor) -> Tensor:
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def _in(t: Tensor, room: tuple[int, ...], cut: tuple[slice, ...]) -> Tensor:
    return torch.empty(room, dtype=t.dtype, device=t.device)[cut].copy_(t)


def _every_other(t: Tensor) -> Tensor:
    return _in(t, (*t.shape[:-1], 2 * t.shape[-1]), (..., slice(None, None, 2)))


def _padded(t: Tensor) -> Tensor:
    return _in(t, (*t.shape[:-1], t.shape[-1] + 3), (..., slice(1, -2)))


def _rows_apart(t: Tensor) -> Tensor:
    return _in(t, (3 * t.shape[0], *t.shape[1:]), (slice(1, None, 3),))


def _unaligned(t: Tensor) -> Tensor:
    return _in(t.flatten(), (t.numel() + 1,), (slice(1, None),)).view(t.shape)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": _reversed,
    "every other": _every_other,
    "padded": _padded,
    "rows apart": _rows_apart,
    "unaligned": _unaligned,
    "expanded": lambda t: t[:1].expand(t.shape),  # other numbers: the first row is all
    "expanded inside": lambda t: t[..., :1].expand(t.shape),
}
