"""RoPE's angles as tables: cos and sin of every position, asked of the model's own rotary module.

So every rope_type that transformers knows works, and no formula is repeated here. Asked in float32:
eager rounds these to the model's dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHANGING = ("dynamic", "longrope")  # the angles depend on how long the text is


def tables(rotary: Any, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(cos, sin), each float32 [length, half of the turned dimensions].

    Where frequencies change with the length, row p has those of a text of p + 1 tokens: what eager
    takes for the token that it appends.
    """
    kind = getattr(rotary, "rope_type", "default")
    x = torch.zeros(1, device=device)
    places = torch.arange(length, device=device)[None]
    if isinstance(kind, str) and any(word in kind for word in _CHANGING):
        rows = [rotary(x, places[:, p : p + 1]) for p in range(length)]
        rotary(x, places[:, :1])  # back to what a short text has
        cos, sin = (torch.cat(part, dim=1) for part in zip(*rows, strict=True))
    else:
        cos, sin = rotary(x, places)
    half = cos.shape[-1] // 2
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
