"""Arguments for tests and benchmarks: each op says how its own are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Draw:
    """Draws fresh random tensors of one dtype, on one device, around one shape."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    requires_grad: bool = False
    everything: bool = False  # also the optional arguments that calls usually leave out
    features: int | None = None  # of a layer with weights; None: as many as are usual
    given: frozenset[str] = frozenset()  # optional arguments that are wanted, by name

    def full(self, scale: float = 1.0) -> Tensor:
        """A tensor of the whole shape, normal with this standard deviation."""
        return self._normal(self.shape, scale)

    def row(self, scale: float = 1.0) -> Tensor:
        """A vector as long as the last dimension: a bias."""
        return self._normal(self.shape[-1:], scale)

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A tensor of another shape."""
        return self._normal(shape, scale)

    def gives(self, name: str) -> bool:
        """Whether this optional argument is wanted."""
        return self.everything or name in self.given

    def width(self, usual: int) -> int:
        """The features of a layer: those asked for, else so many."""
        return usual if self.features is None else self.features

    def matrix(self, rows: int, columns: int) -> Tensor:
        """A weight: its products with normal vectors have a standard deviation of 1."""
        return self._normal((rows, columns), max(columns, 1) ** -0.5)

    def integers(self) -> Tensor:
        """int8 of the whole shape, the whole range."""
        return torch.randint(-128, 128, self.shape, dtype=torch.int8, device=self.device)

    def _normal(self, shape: tuple[int, ...], scale: float) -> Tensor:
        made = torch.randn(shape, dtype=torch.float32, device=self.device).mul_(scale)
        return made.to(self.dtype).requires_grad_(self.requires_grad)


Sampler = Callable[[Draw], tuple[Any, ...]]
