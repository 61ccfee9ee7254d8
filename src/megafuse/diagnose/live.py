"""The library's product of a shape, timed here and now: what a kernel of one's own must beat."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from megafuse.bench.timing import compare

_BUDGET = 0.15  # seconds a shape
_MOST = 8  # shapes
_LARGEST = 1 << 30  # bytes of all three matrices


class Products:
    """Called with batch, rows, inner, columns, dtype: seconds, or None where that is too much."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._known: dict[tuple[int, int, int, int, str], float | None] = {}

    def __call__(self, batch: int, rows: int, inner: int, columns: int, dtype: str) -> float | None:
        key = (batch, rows, inner, columns, dtype)
        if key not in self._known:
            enough = len(self._known) >= _MOST
            self._known[key] = None if enough else self._seconds(*key)
        return self._known[key]

    def _seconds(self, batch: int, rows: int, inner: int, columns: int, dtype: str) -> float | None:
        kind: torch.dtype = getattr(torch, dtype)
        size = batch * (rows * inner + inner * columns + rows * columns) * kind.itemsize
        if size > _LARGEST:
            return None
        shapes = ((rows, inner), (columns, inner))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            x, weight = (
                torch.randn(batch, *shape, device=self._device, dtype=torch.float32).to(kind)
                for shape in shapes
            )
            if batch > 1:
                turned = weight.transpose(1, 2)
                call = lambda i: torch.bmm(x, turned)  # noqa: E731
            else:
                call = lambda i: F.linear(x[0], weight[0])  # noqa: E731
            (taken,) = compare(
                {"": call}, device=self._device, clock="warm", budget=_BUDGET, rounds=5
            ).values()
        return taken.median
