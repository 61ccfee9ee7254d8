"""Prompts in any of the shapes that people have them in, as rows of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def rows_of(prompt: Any) -> tuple[list[Tensor], bool]:
    """The rows, each int64 [n], and whether there was one alone: ids, and not rows of ids.

    A tensor of one or two dimensions, a list of ids, or a list of rows of different lengths.
    """
    if isinstance(prompt, Tensor):
        alone = prompt.dim() == 1
        if prompt.dim() not in (1, 2) or prompt.is_floating_point():
            raise ValueError(
                f"the prompt is a {prompt.dtype} tensor of shape {list(prompt.shape)}: expected "
                "token ids, [length] or [rows, length]"
            )
        rows = [prompt] if alone else list(prompt)
    elif isinstance(prompt, Sequence) and not isinstance(prompt, str):
        alone = all(isinstance(item, int) for item in prompt)
        rows = [torch.tensor(prompt)] if alone else [torch.as_tensor(row) for row in prompt]
    else:
        raise TypeError(
            f"the prompt is a {type(prompt).__name__}: expected token ids, as tokenizers make them"
        )
    return [row.detach().to("cpu", torch.int64).flatten() for row in rows], alone


def check(rows: list[Tensor], batch: int, vocab: int, may_be_empty: bool) -> None:
    if not 1 <= len(rows) <= batch:
        raise ValueError(
            f"{len(rows)} prompts at once: this decoder was compiled for up to {batch}; "
            "compile(model, batch=...) takes up to 8"
        )
    for i, row in enumerate(rows):
        if not may_be_empty and row.numel() == 0:
            raise ValueError(f"prompt {i} is empty: expected at least one token")
        if row.numel() and not (int(row.min()) >= 0 and int(row.max()) < vocab):
            raise ValueError(
                f"prompt {i} has ids from {int(row.min())} to {int(row.max())}: the model's "
                f"embedding has those from 0 to {vocab - 1}"
            )
