"""The cache of keys and values: one block of memory, filled by prefill and by the kernel alike.

[batch, kv_heads, max_length, pitch] for each layer, in the model's dtype; a head's `pitch` numbers
are its own and zeros up to a multiple of 16, so that the kernel reads whole vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from megafuse.decode.reading import Model, padded


class Cache:
    """`keys[layer]` and `values[layer]`; `lengths`: how many positions of each row hold text."""

    def __init__(self, model: Model, max_length: int, batch: int) -> None:
        self.max_length, self.batch = max_length, batch
        self.width, self.pitch = model.head_dim, padded(model.head_dim)
        layers = len(model.layers)
        shape = (2, layers, batch, model.kv_heads, max_length, self.pitch)
        where = model.embedding.device
        self._whole = torch.zeros(shape, dtype=model.dtype, device=where)
        self.keys, self.values = self._whole[0].unbind(0), self._whole[1].unbind(0)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=where)

    @property
    def bytes(self) -> int:
        return self._whole.numel() * self._whole.element_size()

    def of_row(self, row: int, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values as transformers holds them: [1, kv_heads, max_length, head_dim]."""
        keys, values = self.keys[layer], self.values[layer]
        return keys[row : row + 1, ..., : self.width], values[row : row + 1, ..., : self.width]
