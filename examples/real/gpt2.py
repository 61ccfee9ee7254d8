"""Hugging Face's GPT-2 (124 M parameters, random weights), one batch of tokens.

megafuse diagnose examples/real/gpt2.py:eager
megafuse diagnose examples/real/gpt2.py:compiled
megafuse diagnose examples/real/gpt2.py:optimized
"""

from __future__ import annotations

import copy
import functools
import os

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

ON_GPU = torch.cuda.is_available()
BATCH, LENGTH = (8, 512) if ON_GPU else (1, 128)


@functools.cache
def model() -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    made = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    return made.to("cuda", torch.bfloat16) if ON_GPU else made


@functools.cache
def compiled_model() -> torch.nn.Module:
    return torch.compile(model())


@functools.cache
def optimized_model() -> torch.nn.Module:
    import megafuse

    return megafuse.optimize(copy.deepcopy(model()))  # in place, and eager() is to stay eager


@functools.cache
def tokens() -> torch.Tensor:
    return torch.randint(50257, (BATCH, LENGTH), device="cuda" if ON_GPU else "cpu")


def eager() -> torch.Tensor:
    with torch.no_grad():
        return model()(tokens(), use_cache=False).logits


def compiled() -> torch.Tensor:
    with torch.no_grad():
        return compiled_model()(tokens(), use_cache=False).logits


def optimized() -> torch.Tensor:
    with torch.no_grad():
        return optimized_model()(tokens(), use_cache=False).logits
