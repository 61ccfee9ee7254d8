"""Tiny models of every family that a decoder knows, with random weights: nothing is downloaded.

Weights are drawn larger than transformers does, so that logits differ enough for a wrong head,
angle or norm to show, and biases and norms are not all 0 and 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCAB = 203  # odd, and no multiple of any vector
NO_ENDS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
PLAIN: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    **NO_ENDS,
}
HEADS = {**PLAIN, "head_dim": 32}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 40,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.3 * i for i in range(8)],
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPT_2 = {
    "vocab_size": VOCAB,
    "n_embd": 60,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 1100,
    **NO_ENDS,
}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


# Name → (class of transformers, settings).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("Llama", {**HEADS, "num_key_value_heads": 4}),
    "llama-3": ("Llama", {**HEADS, "rope_parameters": LLAMA_3}),
    "llama-biases": ("Llama", {**HEADS, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("Llama", {**HEADS, "tie_word_embeddings": True}),
    "linear-rope": ("Llama", {**HEADS, **_rope("linear", factor=2.0)}),
    "dynamic-rope": (
        "Llama",
        {**HEADS, "max_position_embeddings": 32, **_rope("dynamic", factor=2.0)},
    ),
    "yarn": (
        "Llama",
        {**HEADS, **_rope("yarn", factor=32.0, original_max_position_embeddings=64)},
    ),
    "head-dim-18": ("Llama", {**PLAIN, "head_dim": 18}),
    "head-dim-256": ("Llama", {**PLAIN, "head_dim": 256}),
    "mistral": ("Mistral", {**HEADS, "sliding_window": 17}),
    "qwen2": ("Qwen2", PLAIN),
    "qwen2-some-windows": (
        "Qwen2",
        {**PLAIN, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**PLAIN, "head_dim": 48}),
    "smollm3": ("SmolLM3", {**PLAIN, "no_rope_layer_interval": 2}),
    "phi-3": ("Phi3", {**PLAIN, "sliding_window": 64}),
    "phi-3-partial": ("Phi3", {**PLAIN, **_rope("default", partial_rotary_factor=0.5)}),
    "phi-3-long": (
        "Phi3",
        {**PLAIN, "original_max_position_embeddings": 40, "rope_parameters": LONG},
    ),
    "gpt-2": ("GPT2", GPT_2),
}


def make(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    import transformers as hf

    name, settings = FAMILIES[family]
    config = getattr(hf, f"{name}Config")(**{**settings, **changes})
    model: nn.Module = getattr(hf, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(
        config
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
            else:
                parameter.mul_(4)
    return model.to(dtype)


def text(length: int, kind: str = "random") -> torch.Tensor:
    """Tokens without sense; "repetitive": a few of them again and again, as models repeat."""
    if kind == "random":
        return torch.randint(VOCAB, (length,))
    return torch.randint(VOCAB, (7,)).repeat(-(-length // 7))[:length]
