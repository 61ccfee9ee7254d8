"""A Hugging Face causal LM taken apart: sizes and weights, by its config and its modules.

What the model is made of decides, not its name, wherever that is possible: shapes come from the
weights, RoPE's angles from its rotary module, the scale of attention from its attention module.
The name (`model_type`) says which formulas those modules compute, so it must be a known one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from megafuse.decode.errors import Unsupported

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD_DIM = 256  # at most: the kernels hold a head in registers and on the stack
# config.hidden_act → the name in codegen/activations.py
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass
class Matrix:
    """y = x weightᵀ + bias; `weight` is [rows, cols], its rows one after the other."""

    weight: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None  # of int8 weights, one a row

    @property
    def bytes(self) -> int:
        held = (self.weight, self.bias, self.scale)
        return sum(t.numel() * t.element_size() for t in held if t is not None)


@dataclass
class Norm:
    """Of RMS, or with a mean: `Model.rms` says which."""

    weight: Tensor
    bias: Tensor | None
    eps: float


@dataclass
class Layer:
    """One block. `window` 0 sees all positions; heads may have norms of their own."""

    attention_norm: Norm
    qkv: list[Matrix]
    project: Matrix
    ffn_norm: Norm
    gate_up: list[Matrix]  # gate and up, or the one matrix of an FFN that has no gate
    down: Matrix
    scaling: float
    window: int = 0
    rope: bool = True
    q_norm: Norm | None = None
    k_norm: Norm | None = None


@dataclass
class Model:
    """All that a decode step reads, and its sizes."""

    name: str
    dtype: torch.dtype
    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: Matrix
    heads: int
    kv_heads: int
    head_dim: int
    activation: str
    rms: bool
    rotary: nn.Module | None = None
    positions: Tensor | None = None  # learned ones
    switches_at: int | None = None  # longrope: from so many tokens on, other angles for all
    longest: int | None = None  # positions that it has, where they are learned
    config: Any = field(default=None, repr=False)

    @property
    def hidden(self) -> int:
        return self.embedding.shape[1]

    @property
    def vocab(self) -> int:
        return self.head.weight.shape[0]

    @property
    def inner(self) -> int:
        return self.layers[0].down.weight.shape[1]

    @property
    def gated(self) -> bool:
        return len(self.layers[0].gate_up) == 2


def read(model: nn.Module) -> Model:
    """Takes `model` apart; Unsupported names the field of the config that is not known."""
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", None)
    if kind not in READERS:
        known = ", ".join(sorted(READERS))
        raise Unsupported("config.model_type", kind, f"{known}")
    _refuse(getattr(config, "quantization_config", None), "config.quantization_config", "None")
    if model.training:
        raise Unsupported("model.training", True, "models for inference: call model.eval()")
    found = READERS[kind](model, config)
    _check(found)
    return found


def _check(model: Model) -> None:
    if model.dtype not in DTYPES:
        raise Unsupported("config.dtype", model.dtype, "float32, bfloat16 and float16")
    if model.head_dim > HEAD_DIM or model.head_dim % 2:
        raise Unsupported("config.head_dim", model.head_dim, f"even ones up to {HEAD_DIM}")
    if model.heads % model.kv_heads:
        raise Unsupported(
            "config.num_key_value_heads", model.kv_heads, f"divisors of the {model.heads} heads"
        )
    where = model.embedding.device
    for matrix in _matrices(model):
        weight = matrix.weight
        if weight.dtype != model.dtype or weight.device != where:
            raise Unsupported(
                "a weight's dtype and device",
                f"{weight.dtype} on {weight.device}",
                f"models that are all of one: {model.dtype} on {where}, as the embedding",
            )


def _matrices(model: Model) -> list[Matrix]:
    found = [model.head]
    for layer in model.layers:
        found += [*layer.qkv, layer.project, *layer.gate_up, layer.down]
    return found


# ---- Llama, and what is made like it


def _llama_like(model: Any, config: Any) -> Model:
    inner = model.model
    _refuse(getattr(config, "pretraining_tp", 1) not in (None, 1), "config.pretraining_tp", "1")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = [
        _llama_layer(layer, config, number, (heads, kv_heads, width))
        for number, layer in enumerate(inner.layers[: config.num_hidden_layers])
    ]
    embedding = inner.embed_tokens.weight
    rope = getattr(config, "rope_parameters", None) or {}
    long = rope.get("original_max_position_embeddings") if _rope_type(rope) == "longrope" else None
    return Model(
        name=config.model_type,
        dtype=embedding.dtype,
        embedding=_plain(embedding),
        layers=layers,
        norm=_rms(inner.norm, "model.norm"),
        head=_linear(model.lm_head, "lm_head"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        activation=_activation(config.hidden_act, "config.hidden_act"),
        rms=True,
        rotary=inner.rotary_emb,
        switches_at=long,
        config=config,
    )


def _rope_type(rope: dict[str, Any]) -> str:
    found = rope.get("rope_type", "default")
    if not isinstance(found, str):
        raise Unsupported("config.rope_parameters", rope, "one kind of RoPE for all layers")
    return found


def _llama_layer(layer: Any, config: Any, number: int, sizes: tuple[int, int, int]) -> Layer:
    attention, mlp, path = layer.self_attn, layer.mlp, f"model.layers.{number}"
    heads, kv_heads, width = sizes
    if hasattr(attention, "qkv_proj"):
        rows = [heads * width, kv_heads * width, kv_heads * width]
        qkv = _cut(_linear(attention.qkv_proj, f"{path}.self_attn.qkv_proj"), rows)
    else:
        names = ("q_proj", "k_proj", "v_proj")
        qkv = [_linear(getattr(attention, n), f"{path}.self_attn.{n}") for n in names]
    if hasattr(mlp, "gate_up_proj"):
        both = _linear(mlp.gate_up_proj, f"{path}.mlp.gate_up_proj")
        gate_up = _cut(both, [both.weight.shape[0] // 2] * 2)
    else:
        gate_up = [_linear(getattr(mlp, n), f"{path}.mlp.{n}") for n in ("gate_proj", "up_proj")]
    norms = {
        name: _rms(getattr(attention, name), f"{path}.self_attn.{name}")
        for name in ("q_norm", "k_norm")
        if hasattr(attention, name)
    }
    return Layer(
        attention_norm=_rms(layer.input_layernorm, f"{path}.input_layernorm"),
        qkv=qkv,
        project=_linear(attention.o_proj, f"{path}.self_attn.o_proj"),
        ffn_norm=_rms(layer.post_attention_layernorm, f"{path}.post_attention_layernorm"),
        gate_up=gate_up,
        down=_linear(mlp.down_proj, f"{path}.mlp.down_proj"),
        scaling=float(attention.scaling),
        window=_window(attention, config, number),
        rope=bool(getattr(attention, "use_rope", True)),
        q_norm=norms.get("q_norm"),
        k_norm=norms.get("k_norm"),
    )


def _window(attention: Any, config: Any, number: int) -> int:
    """Positions that this layer sees; 0: all. Mistral and Phi-3 have one for all layers."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        if kinds[number] not in ("full_attention", "sliding_attention"):
            raise Unsupported(
                f"config.layer_types[{number}]",
                kinds[number],
                "full_attention and sliding_attention",
            )
        return int(config.sliding_window) if kinds[number] == "sliding_attention" else 0
    return int(getattr(config, "sliding_window", None) or 0) if _slides(config) else 0


def _slides(config: Any) -> bool:
    return config.model_type in ("mistral", "phi3")


# ---- GPT-2


def _gpt2(model: Any, config: Any) -> Model:
    inner = model.transformer
    _refuse(getattr(config, "add_cross_attention", False), "config.add_cross_attention", "False")
    heads = config.num_attention_heads
    layers = []
    for number, block in enumerate(inner.h):
        path = f"transformer.h.{number}"
        size = config.hidden_size
        layers.append(
            Layer(
                attention_norm=_layer_norm(block.ln_1, f"{path}.ln_1"),
                qkv=_cut(_conv(block.attn.c_attn, f"{path}.attn.c_attn"), [size] * 3),
                project=_conv(block.attn.c_proj, f"{path}.attn.c_proj"),
                ffn_norm=_layer_norm(block.ln_2, f"{path}.ln_2"),
                gate_up=[_conv(block.mlp.c_fc, f"{path}.mlp.c_fc")],
                down=_conv(block.mlp.c_proj, f"{path}.mlp.c_proj"),
                scaling=float(block.attn.scaling),
                rope=False,
            )
        )
    return Model(
        name=config.model_type,
        dtype=inner.wte.weight.dtype,
        embedding=_plain(inner.wte.weight),
        layers=layers,
        norm=_layer_norm(inner.ln_f, "transformer.ln_f"),
        head=_linear(model.lm_head, "lm_head"),
        heads=heads,
        kv_heads=heads,
        head_dim=config.hidden_size // heads,
        activation=_activation(config.activation_function, "config.activation_function"),
        rms=False,
        positions=_plain(inner.wpe.weight),
        longest=inner.wpe.weight.shape[0],
        config=config,
    )


READERS: dict[str, Callable[[Any, Any], Model]] = {
    "llama": _llama_like,
    "mistral": _llama_like,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "smollm3": _llama_like,
    "phi3": _llama_like,
    "gpt2": _gpt2,
}


# ---- modules


def _refuse(wrong: Any, field_name: str, expected: str) -> None:
    if wrong:
        raise Unsupported(field_name, wrong, expected)


def _activation(name: Any, field_name: str) -> str:
    if name not in ACTIVATIONS:
        raise Unsupported(field_name, name, ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


def _plain(weight: Tensor) -> Tensor:
    return weight.detach().contiguous()


def padded(n: int) -> int:
    """Numbers of a row in memory: kernels read several at once, 16 at most."""
    return -(-n // 16) * 16


def _in_fours(weight: Tensor) -> Tensor:
    """Of a norm, as floats of its own with zeros behind them: kernels read four at once."""
    n = weight.numel()
    return nn.functional.pad(weight.detach().float(), (0, padded(n) - n))


def _linear(module: Any, path: str) -> Matrix:
    if not isinstance(module, nn.Linear) or hasattr(module, "base_layer"):
        raise Unsupported(
            path, type(module).__name__, "torch.nn.Linear: merge adapters, and do not convert first"
        )
    bias = None if module.bias is None else module.bias.detach().float().contiguous()
    return Matrix(_plain(module.weight), bias)


def _conv(module: Any, path: str) -> Matrix:
    """transformers' Conv1D: a linear layer whose weight is [cols, rows], so it is turned."""
    if type(module).__name__ != "Conv1D":
        raise Unsupported(path, type(module).__name__, "transformers' Conv1D")
    return Matrix(_plain(module.weight.t()), module.bias.detach().float().contiguous())


def _cut(whole: Matrix, rows: list[int]) -> list[Matrix]:
    weights = whole.weight.split(rows)
    biases = [None] * len(rows) if whole.bias is None else whole.bias.split(rows)
    return [Matrix(w, b) for w, b in zip(weights, biases, strict=True)]


def _rms(module: Any, path: str) -> Norm:
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is None or getattr(module, "bias", None) is not None:
        raise Unsupported(path, type(module).__name__, "RMS norms with a weight")
    return Norm(_in_fours(module.weight), None, float(eps))


def _layer_norm(module: Any, path: str) -> Norm:
    if not isinstance(module, nn.LayerNorm):
        raise Unsupported(path, type(module).__name__, "torch.nn.LayerNorm")
    weight = torch.ones(module.normalized_shape) if module.weight is None else module.weight
    bias = None if module.bias is None else _in_fours(module.bias)
    return Norm(_in_fours(weight), bias, float(module.eps))
