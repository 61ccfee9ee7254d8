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


def short_text() -> dict[str, Tensor]:
    """Eight tokens: Mamba's scan is a loop over them, and each turn is traced."""
    seen = (torch.arange(8) < torch.tensor([[8], [5], [7]])).long()
    return {"input_ids": torch.randint(3, 200, (3, 8)), "attention_mask": seen}


def without_mask(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in given.items() if name != "attention_mask"}


ONE_LAYER = {**SIZES, "num_hidden_layers": 1, "intermediate_size": 176}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {"vocab_size": 200, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0}
BART |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
BART |= {f"{part}_ffn_dim": 128 for part in ("encoder", "decoder")}
BART |= {**TOKENS, "decoder_start_token_id": 2}
# Other kinds of architecture, for optimize alone: nothing is said of what convert makes of them.
OTHERS = {
    "Mixtral (experts)": Family(
        "MixtralForCausalLM",
        "MixtralConfig",
        {**ONE_LAYER, **TOKENS, "num_key_value_heads": 1, "num_local_experts": 4},
        set(),
        inputs=short_text,
    ),
    "gpt-oss (experts with biases, attention sinks)": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        {**GROUPED, **TOKENS, "num_hidden_layers": 1, "num_local_experts": 4, "sliding_window": 4}
        | {"num_experts_per_tok": 2},
        set(),
        inputs=short_text,
    ),
    "BLOOM (ALiBi)": Family(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 200, "hidden_size": 64, "n_layer": 1, "n_head": 2, **TOKENS},
        set(),
        inputs=short_text,
    ),
    "XLNet (relative positions)": Family(
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": 200, "d_model": 64, "n_layer": 1, "n_head": 2, "d_inner": 128}
        | {"dropout": 0},
        set(),
        inputs=short_text,
    ),
    "ConvNeXt (convolutions)": Family(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 16},
        set(),
        inputs=lambda: pictures(),
    ),
    "Swin (windows)": Family(
        "SwinForImageClassification",
        "SwinConfig",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [2]}
        | {"window_size": 4, "drop_path_rate": 0.0},
        set(),
        inputs=lambda: pictures(),
    ),
    "BART (encoder and decoder)": Family(
        "BartForConditionalGeneration",
        "BartConfig",
        BART,
        set(),
        inputs=lambda: {**short_text(), "decoder_input_ids": torch.randint(3, 200, (3, 5))},
    ),
    "Mamba (state space)": Family(
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 1, "state_size": 8, **TOKENS},
        set(),
        inputs=lambda: without_mask(short_text()),
    ),
}
