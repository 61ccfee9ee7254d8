"""How the next token is chosen, and when to stop: checked, with the model's own defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Options:
    """In transformers' order: repetition penalty, temperature, top-k, top-p, a draw.

    `temperature` 0 takes the likeliest token; `top_k` 0 and `top_p` 1 leave all of them.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    stop: tuple[int, ...] = ()
    pad: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, self.temperature >= 0, "0 (greedy) or more")
        _within("top_k", self.top_k, self.top_k >= 0, "0 (all tokens) or more")
        _within("top_p", self.top_p, 0 < self.top_p <= 1, "more than 0, and at most 1")
        _within(
            "repetition_penalty",
            self.repetition_penalty,
            self.repetition_penalty > 0,
            "more than 0",
        )

    def words(self) -> dict[str, Any]:
        """As members of the kernel's Step, but for the stop tokens."""
        return {
            "temperature": float(self.temperature),
            "top_k": int(self.top_k),
            "top_p": float(self.top_p),
            "penalty": float(self.repetition_penalty),
            "seed": self.seed % (1 << 64),
            "pad": self.pad,
        }


def _within(name: str, value: Any, right: bool, expected: str) -> None:
    if not right:
        raise ValueError(f"{name} is {value!r}: expected {expected}")


def stop_tokens(given: int | Sequence[int] | None, model: Any) -> tuple[int, ...]:
    """Those given; else those at which the model's own generation config ends a text."""
    if given is None:
        for config in (getattr(model, "generation_config", None), model.config):
            given = getattr(config, "eos_token_id", None)
            if given is not None:
                break
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else tuple(int(token) for token in given)


def pad_token(stop: tuple[int, ...], model: Any) -> int:
    """What follows the end of a row that ends before the others."""
    for config in (getattr(model, "generation_config", None), model.config):
        found = getattr(config, "pad_token_id", None)
        if found is not None:
            return int(found)
    return stop[0] if stop else 0


def seed_or_drawn(seed: int | None) -> int:
    """Without a seed one is drawn from torch's generator, so that torch.manual_seed repeats."""
    return int(torch.randint(1 << 62, ()).item()) if seed is None else int(seed)
