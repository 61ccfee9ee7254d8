"""The prompt goes through the model itself, which fills the decoder's cache.

The cache is handed to the model as transformers' own kind of object, whose layers write where the
kernel will read. A row at a time and without padding, so rows may have any lengths. Whatever the
model's forward is (eager, or after `megafuse.optimize`) is what computes.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin

from megafuse.decode.cache import Cache
from megafuse.runtime.widened import widened_where_slow


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One layer of one row of the decoder's cache."""

    is_sliding = False

    def __init__(self, cache: Cache, row: int, layer: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values = cache.of_row(row, layer)
        self._length = int(cache.lengths[row])
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        end = self._length + key_states.shape[-2]
        self.keys[..., self._length : end, :] = key_states
        self.values[..., self._length : end, :] = value_states
        self._length = end
        return self.keys[..., :end, :], self.values[..., :end, :]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        return self._length

    def get_max_length(self) -> int:
        assert self.keys is not None
        return int(self.keys.shape[-2])


@torch.no_grad()
def prefill(model: nn.Module, cache: Cache, row: int, ids: Tensor) -> Tensor:
    """Appends `ids` to a row of the cache; returns the logits of the last one, float32 [vocab]."""
    layers: list[Any] = [RowLayer(cache, row, layer) for layer in range(len(cache.keys))]
    past = TransformersCache(layers=layers)
    # What is compiled has its own products, and is not captured anew for such a mode.
    is_plain = getattr(model, "_compiled_call_impl", None) is None
    with widened_where_slow(cache.keys[0]) if is_plain else nullcontext():
        made = model(
            input_ids=ids[None].to(cache.keys[0].device),
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
    cache.lengths[row] += ids.numel()
    logits: Tensor = made.logits[0, -1].float()
    return logits
