"""The suite `transformer`: a transformer's layers and rows, at the sizes that the project promises.

On CUDA batch 32, sequence 512, hidden 768, and rows of 64 Mi bfloat16 or 32 Mi float32: twice the
H200's L2. On the CPU batch 4, sequence 64, and rows of 1 Mi.

`compile-max` tunes every matrix product for many seconds: only the rows that are held against it
have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from megafuse.bench.job import Mode
from megafuse.bench.result import Choice
from megafuse.bench.spec import Spec

KI, MI = 1 << 10, 1 << 20
HIDDEN, HEADS = 768, 12
COLUMNS = (KI, 4 * KI, 16 * KI, 64 * KI)
BACKWARD_COLUMNS = (KI, 4 * KI, 64 * KI)
BF16, FP32 = torch.bfloat16, torch.float32
# What a layer is measured in beside its forward row.
TUNED, BOTH, BACKWARD = "against compile-max", "in both dtypes", "forward+backward"


@dataclass(frozen=True)
class _Layer:
    """A layer, or rows, at one size."""

    op: str
    shape: tuple[int, ...]
    features: int | None = None
    choices: dict[str, Choice] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def spec(self, mode: Mode, dtype: torch.dtype, *more: str) -> Spec:
        against = ("eager", "compile", *more)
        chosen = tuple(self.choices.items())
        return Spec(self.op, mode, dtype, self.shape, against, self.features, chosen)


def transformer(device: str) -> Iterator[Spec]:
    yield from _layers(device)
    yield from _rows(device)


def _layers(device: str) -> Iterator[Spec]:
    on_gpu = device == "cuda"
    # bfloat16 is what a GPU is for; a CPU mostly has float32.
    usual, other = (BF16, FP32) if on_gpu else (FP32, BF16)
    for layer in _every_layer(on_gpu):
        tuned = ("compile-max",) if on_gpu and TUNED in layer.also else ()
        yield layer.spec("forward", usual, *tuned)
        if BOTH in layer.also:
            yield layer.spec("forward", other)
        if BACKWARD in layer.also:
            yield layer.spec("forward+backward", usual)


def _every_layer(on_gpu: bool) -> list[_Layer]:
    batch, sequence = (32, 512) if on_gpu else (4, 64)
    x = (batch, sequence, HIDDEN)
    q = (batch, HEADS, sequence, 64)
    small, middle, large = (
        ((256, 256), (1024, 784), (8192, 4096)) if on_gpu else ((64, 256), (128, 784), (128, 4096))
    )
    wide = 4 * HIDDEN
    everything = (TUNED, BOTH, BACKWARD)
    tanh_block: dict[str, Choice] = {"act": "gelu_tanh", "heads": HEADS}
    return [
        _Layer("layernorm_linear", x, 3 * HIDDEN, {}, everything),
        _Layer("linear_gelu", x, wide, {"approximate": "tanh"}, (TUNED, BOTH)),
        _Layer("linear_gelu", x, wide, {"approximate": "none"}),
        _Layer("gelu_linear", (batch, sequence, wide), HIDDEN, {"approximate": "none"}),
        _Layer("ffn", x, wide, {"act": "gelu_tanh"}, everything),
        _Layer("ffn", x, wide, {"act": "gelu"}),
        _Layer("ffn", x, wide, {"act": "relu"}),
        _Layer("swiglu_ffn", x, 2048),
        _Layer("transformer_block", x, wide, tanh_block, everything),
        _Layer("transformer_block", x, wide, tanh_block | {"act": "gelu"}),
        _Layer("attention", q, None, {}, (BOTH,)),
        _Layer("attention", q, None, {"causal": True}),
        _Layer("attention", q, None, {"mask": True}),
        _Layer("attention", (8 * batch, HEADS, sequence // 8, 64)),
        _Layer("linear_relu", small, 512),
        _Layer("linear_relu", middle, 2048, {}, (TUNED, BACKWARD)),
        _Layer("linear_relu", large, 4096, {}, everything),
    ]


_ROWS: tuple[tuple[str, dict[str, Choice]], ...] = (
    ("layer_norm", {}),
    ("rms_norm", {}),
    ("softmax", {}),
    ("softmax", {"mask": True}),
    ("softmax", {"causal": True}),
    ("residual_layer_norm", {"p": 0.0}),
    ("residual_rms_norm", {"p": 0.0}),
)


def _rows(device: str) -> Iterator[Spec]:
    for op, choices in _ROWS:
        for columns in COLUMNS:
            for dtype in (BF16, FP32):
                layer = _row(op, choices, columns, dtype, device)
                if layer is not None:
                    yield layer.spec("forward", dtype)
                    if BACKWARD in layer.also:
                        yield layer.spec("forward+backward", dtype)


def _row(
    op: str, choices: dict[str, Choice], columns: int, dtype: torch.dtype, device: str
) -> _Layer | None:
    """None: there is no such row on this device."""
    on_gpu = device == "cuda"
    # torch.compile takes seconds for a row on a CPU: fewer of them.
    if not on_gpu and columns not in ((KI, 64 * KI) if dtype == FP32 else (KI,)):
        return None
    elements = 128 * MI // dtype.itemsize if on_gpu else MI
    shape: tuple[int, ...] = (elements // columns, columns)
    if "causal" in choices:  # square, or most of the triangle that is left out would be missing
        shape = (elements // columns**2, columns, columns)
    # A mask wants no gradient in a model; causal rows are but shorter ones.
    plain = op != "softmax" or not choices
    trained = columns in BACKWARD_COLUMNS if on_gpu else columns == KI and dtype == FP32
    also = (BACKWARD,) if plain and trained else ()
    return _Layer(op, shape, None, choices, also) if min(shape) else None
