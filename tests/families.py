"""Small models of transformers with random weights, and what convert makes of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SIZES = {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
GROUPED = {**SIZES, "intermediate_size": 176, "num_key_value_heads": 1, "head_dim": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
GPT2 = {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 2, "resid_pdrop": 0}
GPT2 |= {"embd_pdrop": 0, "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}
T5 = {"vocab_size": 200, "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2}
T5 |= {"dropout_rate": 0, "decoder_start_token_id": 0}


@dataclass(frozen=True)
class Family:
    """`kinds` are the modules of ours that its own become, `causal` those that generate."""

    model: str
    config: str
    settings: dict[str, Any]
    kinds: set[str]
    causal: bool = False
    inputs: Callable[[], dict[str, Tensor]] = field(default=lambda: text())

    def make(self, **changes: Any) -> nn.Module:
        import transformers as hf

        config = getattr(hf, self.config)(**{**self.settings, **changes})
        model: nn.Module = getattr(hf, self.model)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # biases are all 0 and norms all 1 else
                    parameter.add_(torch.randn_like(parameter) / 4)
        return model


def text() -> dict[str, Tensor]:
    """Sequences of different lengths, padded on the right."""
    seen = (torch.arange(64) < torch.tensor([[64], [40], [64], [17]])).long()
    return {"input_ids": torch.randint(200, (4, 64)), "attention_mask": seen}


def pairs() -> dict[str, Tensor]:
    return {**text(), "decoder_input_ids": torch.randint(200, (4, 16))}


def pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(4, 3, 16, 16)}


WIDE = {**SIZES, "intermediate_size": 256}
POST_NORM = {"LayerNorm", "LinearGELU", "ResidualLayerNorm"}
OF_LLAMA = {"RMSNorm", "SwiGLUFFN"}
FAMILIES = {
    "BERT": Family("BertForMaskedLM", "BertConfig", {**WIDE, **NO_DROPOUT}, POST_NORM),
    "GPT-2": Family("GPT2LMHeadModel", "GPT2Config", GPT2, {"LayerNorm", "FFN"}, True),
    "Llama": Family("LlamaForCausalLM", "LlamaConfig", GROUPED, OF_LLAMA, True),
    "Qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", GROUPED, OF_LLAMA, True),
    "Mistral": Family("MistralForCausalLM", "MistralConfig", GROUPED, OF_LLAMA, True),
    "Gemma": Family("GemmaForCausalLM", "GemmaConfig", GROUPED, {"RMSNorm", "GatedFFN"}, True),
    "Phi-3": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        {**SIZES, "intermediate_size": 176, "pad_token_id": 0, "bos_token_id": 0}
        | {"eos_token_id": 0},
        {"RMSNorm", "SwiGLU"},
        True,
    ),
    "OPT": Family(
        "OPTForCausalLM",
        "OPTConfig",
        {**SIZES, "ffn_dim": 256, "word_embed_proj_dim": 64, "dropout": 0},
        {"LayerNorm"},
        True,
    ),
    "GPT-NeoX": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", WIDE, {"LayerNorm", "FFN"}, True),
    "T5": Family(
        "T5ForConditionalGeneration", "T5Config", T5, {"RMSNorm", "FFN"}, inputs=lambda: pairs()
    ),
    "T5, gated": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        {**T5, "feed_forward_proj": "gated-gelu"},
        {"RMSNorm", "GatedFFN"},
        inputs=lambda: pairs(),
    ),
    "ViT": Family(
        "ViTForImageClassification",
        "ViTConfig",
        {**{k: v for k, v in WIDE.items() if k != "vocab_size"}, **NO_DROPOUT}
        | {"image_size": 16, "patch_size": 8},
        {"LayerNorm", "FFN"},
        inputs=lambda: pictures(),
    ),
    "RoBERTa": Family("RobertaForMaskedLM", "RobertaConfig", {**WIDE, **NO_DROPOUT}, POST_NORM),
    "DistilBERT": Family(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 200, "dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 128}
        | {"dropout": 0, "attention_dropout": 0},
        {"LayerNorm", "FFN"},
    ),
}
