"""The ten models: how each is made, how large, what it reads, and what it is trained on.

Those of the transformers library are made from its configurations, with random weights and without
dropout; nothing is downloaded. The others are written out here.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from megafuse.bench.models import moe, unet, vision

NO_TRANSFORMERS = (
    "the transformers library is not installed: pip install transformers, or megafuse[models]"
)
Settings = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """A batch, and how long a sequence is, or how wide a picture. `context` is what a decode step
    finds in its cache."""

    batch: int
    length: int
    context: int = 0


@dataclass(frozen=True)
class Model:
    """`gigabytes` is about what a float32 train step takes on CUDA: it decides who may be on the
    device side by side, and nothing else."""

    name: str
    about: str
    make: Callable[[bool], nn.Module]  # whether it is to be tiny
    inputs: Callable[[Size, bool], dict[str, Tensor]]
    sizes: tuple[Size, Size, Size]  # on CUDA (those of FACTS.md where it has them), on a CPU, tiny
    gigabytes: float
    vocabulary: int = 0  # of the tokens it predicts; 0: no tokens
    classes: int = 0
    causal: bool = False
    library: str = ""  # what has to be installed
    arguments: Settings = field(default_factory=dict)  # of every call that has no cache

    def size(self, device: str, tiny: bool) -> Size:
        return self.sizes[2 if tiny else 0 if device == "cuda" else 1]

    @property
    def missing(self) -> str:
        """Why it cannot be made here; "" if it can."""
        absent = self.library and importlib.util.find_spec(self.library) is None
        return NO_TRANSFORMERS if absent else ""


def transformers_version() -> str | None:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def tensor_of(output: Any) -> Tensor:
    """The logits, or what a plain model returns."""
    found: Tensor = output if isinstance(output, Tensor) else output.logits
    return found


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy in float32 of classes, the mean square error of anything else."""
    if target.is_floating_point():
        return F.mse_loss(output.float(), target.float())
    return F.cross_entropy(output.flatten(0, -2).float(), target.flatten())


# ---- models of the transformers library

_TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
_TINY_WIDE = {**_TINY, "vocab_size": 200, "intermediate_size": 128}
_TINY_GROUPED = {**_TINY_WIDE, "num_key_value_heads": 1, "head_dim": 32}
TINY_VOCABULARY = 200
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _made(model: str, config: str, settings: Settings, tiny: Settings) -> Callable[..., nn.Module]:
    def make(small: bool) -> nn.Module:
        hf = importlib.import_module("transformers")
        chosen = getattr(hf, config)(**{**settings, **(tiny if small else {})})
        found: nn.Module = getattr(hf, model)(chosen)
        return found

    return make


def _tokens(vocabulary: int, *names: str) -> Callable[[Size, bool], dict[str, Tensor]]:
    def draw(size: Size, tiny: bool) -> dict[str, Tensor]:
        most = TINY_VOCABULARY if tiny else vocabulary
        return {name: torch.randint(most, (size.batch, size.length)) for name in names}

    return draw


def _pictures(size: Size, tiny: bool) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size.batch, 3, size.length, size.length)}


_BERT = _made("BertForMaskedLM", "BertConfig", _NO_DROPOUT, _TINY_WIDE)
_NO_GPT2_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_GPT2 = _made(
    "GPT2LMHeadModel",
    "GPT2Config",
    _NO_GPT2_DROPOUT,
    {"vocab_size": 200, "n_embd": 64, "n_layer": 2, "n_head": 2}
    | {"bos_token_id": 0, "eos_token_id": 0},
)
_LLAMA = _made(
    "LlamaForCausalLM",
    "LlamaConfig",
    {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64}
    | {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8}
    | {"tie_word_embeddings": True},
    _TINY_GROUPED,
)
_QWEN3 = _made(
    "Qwen3ForCausalLM",
    "Qwen3Config",
    {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128}
    | {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8}
    | {"tie_word_embeddings": True},
    _TINY_GROUPED,
)
_VIT = _made(
    "ViTForImageClassification",
    "ViTConfig",
    {**_NO_DROPOUT, "num_labels": vision.CLASSES},
    {**_TINY, "intermediate_size": 128, "image_size": 32, "patch_size": 8},
)
_T5 = _made(
    "T5ForConditionalGeneration",
    "T5Config",
    {"dropout_rate": 0.0, "decoder_start_token_id": 0},  # its defaults are t5-small's sizes
    {"vocab_size": 200, "d_model": 64, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 2},
)

# ---- models that are written out


def _resnet(tiny: bool) -> nn.Module:
    return vision.ResNet((1, 1), 16) if tiny else vision.ResNet()


def _convnext(tiny: bool) -> nn.Module:
    return vision.ConvNeXt((1, 1), (32, 64)) if tiny else vision.ConvNeXt()


def _unet(tiny: bool) -> nn.Module:
    return unet.UNetBlock(32, 2, 8) if tiny else unet.UNetBlock()


def _moe(tiny: bool) -> nn.Module:
    return moe.MoELayer(64, 128, 4) if tiny else moe.MoELayer()


def _noise_and_time(size: Size, tiny: bool) -> dict[str, Tensor]:
    channels = 32 if tiny else 320
    x = torch.randn(size.batch, channels, size.length, size.length)
    return {"x": x, "time": torch.randn(size.batch, 4 * channels)}


def _hidden(size: Size, tiny: bool) -> dict[str, Tensor]:
    return {"hidden_states": torch.randn(size.batch, size.length, 64 if tiny else 1024)}


_HF = "transformers"
_TEXT, _PICTURE, _SMALL = Size(1, 128, 128), Size(1, 224), Size(2, 32, 8)
_UNCACHED = {"use_cache": False}
_CAUSAL: Settings = {"causal": True, "library": _HF, "arguments": _UNCACHED}

_ALL = (
    Model(
        *("bert", "BERT-base, masked language model", _BERT, _tokens(30522, "input_ids")),
        sizes=(Size(32, 128), _TEXT, _SMALL),
        gigabytes=12,
        vocabulary=30522,
        library=_HF,
    ),
    Model(
        *("gpt2", "GPT-2, 124 M parameters", _GPT2, _tokens(50257, "input_ids")),
        sizes=(Size(8, 1024, 512), _TEXT, _SMALL),
        gigabytes=30,
        vocabulary=50257,
        **_CAUSAL,
    ),
    Model(
        *("llama", "Llama-3.2-1B's sizes", _LLAMA, _tokens(128256, "input_ids")),
        sizes=(Size(4, 512, 512), _TEXT, _SMALL),
        gigabytes=45,
        vocabulary=128256,
        **_CAUSAL,
    ),
    Model(
        *("qwen3", "Qwen3-0.6B's sizes", _QWEN3, _tokens(151936, "input_ids")),
        sizes=(Size(4, 512, 512), _TEXT, _SMALL),
        gigabytes=35,
        vocabulary=151936,
        **_CAUSAL,
    ),
    Model(
        *("vit", "ViT-base, 1000 classes", _VIT, _pictures),
        sizes=(Size(64, 224), _PICTURE, _SMALL),
        gigabytes=20,
        classes=vision.CLASSES,
        library=_HF,
    ),
    Model(
        *("t5", "T5-small, encoder and decoder", _T5),
        inputs=_tokens(32128, "input_ids", "decoder_input_ids"),
        sizes=(Size(32, 128), _TEXT, _SMALL),
        gigabytes=12,
        vocabulary=32128,
        library=_HF,
        arguments=_UNCACHED,
    ),
    Model(
        *("resnet50", "ResNet-50, written out", _resnet, _pictures),
        sizes=(Size(64, 224), _PICTURE, _SMALL),
        gigabytes=12,
        classes=vision.CLASSES,
    ),
    Model(
        *("convnext", "ConvNeXt-tiny, written out", _convnext, _pictures),
        sizes=(Size(64, 224), _PICTURE, _SMALL),
        gigabytes=25,
        classes=vision.CLASSES,
    ),
    Model(
        *("unet", "a U-Net's block with self-attention, written out", _unet, _noise_and_time),
        sizes=(Size(16, 32), Size(1, 32), Size(2, 8)),
        gigabytes=8,
    ),
    Model(
        *("moe", "a layer of 8 experts, two for a token, written out", _moe, _hidden),
        sizes=(Size(8, 1024), _TEXT, _SMALL),
        gigabytes=6,
    ),
)
MODELS = {model.name: model for model in _ALL}
