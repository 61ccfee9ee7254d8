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
    """`kinds` are the modules of ours that its own become, `causal` those that generate; `results`
    are what of its output is compared."""

    model: str
    config: str
    settings: dict[str, Any]
    kinds: set[str]
    causal: bool = False
    inputs: Callable[[], dict[str, Tensor]] = field(default=lambda: text())
    results: tuple[str, ...] = ("logits",)

    def make(self, **changes: Any) -> nn.Module:
        import transformers as hf

        made = {k: v() if callable(v) else v for k, v in {**self.settings, **changes}.items()}
        config = getattr(hf, self.config)(**made)
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


def larger_pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(4, 3, 32, 32)}


def text_and_pictures() -> dict[str, Tensor]:
    """As many of both, and not 3: then the batch would be as large as a picture has colours, and
    torch takes sizes that are equal for one."""
    drawn = {name: torch.cat([t, t[:1]]) for name, t in short_text().items()}
    return {**drawn, **pictures()}


def small_resnet() -> Any:
    """In place of DETR's default backbone, which is the timm library's."""
    import transformers as hf

    return hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage1", "stage2"],
    )


def smaller_resnet() -> Any:
    import transformers as hf

    return hf.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )


ONE_LAYER = {**SIZES, "num_hidden_layers": 1, "intermediate_size": 176}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BART = {"vocab_size": 200, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0}
BART |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
BART |= {f"{part}_ffn_dim": 128 for part in ("encoder", "decoder")}
BART |= {**TOKENS, "decoder_start_token_id": 2}
WITHOUT_VOCABULARY = {k: v for k, v in ONE_LAYER.items() if k != "vocab_size"}
DETR = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 5, "dropout": 0.0}
DETR |= {name: number for name, number in BART.items() if "heads" in name or "ffn" in name}
DETR |= {"backbone_config": small_resnet}
RT_DETR = {"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [8, 16, 16]}
RT_DETR |= {"decoder_in_channels": [32, 32, 32], "num_queries": 6, "num_denoising": 0}
RT_DETR |= {f"{part}_attention_heads": 2 for part in ("encoder", "decoder")}
RT_DETR |= {f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")}
RT_DETR |= {"decoder_layers": 1, "decoder_n_points": 2, "backbone_config": smaller_resnet}
WHISPER = {**BART, **TOKENS, "num_mel_bins": 8, "decoder_start_token_id": 1}
WHISPER |= {"max_source_positions": 20, "max_target_positions": 16}
WHISPER |= {"suppress_tokens": None, "begin_suppress_tokens": None}
WAV2VEC2 = {**WITHOUT_VOCABULARY, "vocab_size": 32, "pad_token_id": 0, "apply_spec_augment": False}
WAV2VEC2 |= {"num_feat_extract_layers": 2, "conv_dim": (16, 16), "conv_stride": (4, 2)}
WAV2VEC2 |= {"conv_kernel": (8, 3), "num_conv_pos_embeddings": 8, "layerdrop": 0.0}
WAV2VEC2 |= {"num_conv_pos_embedding_groups": 2, "hidden_dropout": 0.0, "final_dropout": 0.0}
WAV2VEC2 |= {f"{part}_dropout": 0.0 for part in ("attention", "feat_proj", "activation")}
OF_CLIP = {**WITHOUT_VOCABULARY, "projection_dim": 32}
SOFT_CAPPED = {**GROUPED, **TOKENS, "sliding_window": 4, "query_pre_attn_scalar": 32}
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
    "SwinV2 (windows, cosine attention)": Family(
        "Swinv2ForImageClassification",
        "Swinv2Config",
        {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2], "num_heads": [2]}
        | {"window_size": 4, "drop_path_rate": 0.0},
        set(),
        inputs=lambda: pictures(),
    ),
    "EfficientNet (depthwise convolutions, batch norms, gates)": Family(
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.2, "hidden_dim": 320}
        | {"dropout_rate": 0.0, "drop_connect_rate": 0.0},
        set(),
        inputs=larger_pictures,
    ),
    "DETR (queries of a picture)": Family(
        "DetrForObjectDetection",
        "DetrConfig",
        DETR,
        set(),
        inputs=larger_pictures,
        results=("logits", "pred_boxes"),
    ),
    "Deformable DETR (samples between pixels)": Family(
        "DeformableDetrForObjectDetection",
        "DeformableDetrConfig",
        {**DETR, "num_feature_levels": 2, "encoder_n_points": 2, "decoder_n_points": 2},
        set(),
        inputs=larger_pictures,
        results=("logits", "pred_boxes"),
    ),
    "RT-DETR (the best of many queries)": Family(
        "RTDetrForObjectDetection",
        "RTDetrConfig",
        {**RT_DETR, "num_labels": 5},
        set(),
        inputs=lambda: {"pixel_values": torch.randn(2, 3, 64, 64)},
        results=("logits", "pred_boxes"),
    ),
    "Whisper (sound to text)": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        WHISPER,
        set(),
        inputs=lambda: {
            "input_features": torch.randn(3, 8, 40),
            "decoder_input_ids": torch.randint(3, 200, (3, 6)),
        },
    ),
    "wav2vec2 (sound, convolutions by groups)": Family(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        WAV2VEC2,
        set(),
        inputs=lambda: {"input_values": torch.randn(3, 160)},
    ),
    "CLIP (two towers)": Family(
        "CLIPModel",
        "CLIPConfig",
        {"projection_dim": 32}
        | {"text_config": {**OF_CLIP, **TOKENS, "vocab_size": 200, "max_position_embeddings": 32}}
        | {"vision_config": {**OF_CLIP, "image_size": 16, "patch_size": 8}},
        set(),
        inputs=text_and_pictures,
        results=("logits_per_image", "text_embeds"),
    ),
    "Gemma-2 (capped scores and logits)": Family(
        "Gemma2ForCausalLM", "Gemma2Config", SOFT_CAPPED, set(), inputs=short_text
    ),
    "Gemma-3 (norms of queries and keys)": Family(
        "Gemma3ForCausalLM", "Gemma3TextConfig", SOFT_CAPPED, set(), inputs=short_text
    ),
    "Phi (parallel layers, part of a head rotated)": Family(
        "PhiForCausalLM", "PhiConfig", {**ONE_LAYER, **TOKENS}, set(), inputs=short_text
    ),
    "Falcon (one key for all heads)": Family(
        "FalconForCausalLM",
        "FalconConfig",
        {**SIZES, **TOKENS, "num_hidden_layers": 1},
        set(),
        inputs=short_text,
    ),
    "DeBERTa (positions among scores)": Family(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**ONE_LAYER, **NO_DROPOUT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
        | {"position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True}
        | {"conv_kernel_size": 3, "max_position_embeddings": 32},
        set(),
        inputs=short_text,
    ),
    "Mamba-2 (state space, by chunks)": Family(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 8, **TOKENS}
        | {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4},
        set(),
        inputs=lambda: without_mask(short_text()),
    ),
}
